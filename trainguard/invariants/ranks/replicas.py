"""Judgements of replicas: their parameters, gradients and buffers are the same in all processes."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer, number, portion, ranks_text
from trainguard.events.ranks import SUM_DIGITS
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ROUNDING,
    ReplicaGroup,
    evidence,
    gradient_partings,
    odd_ones,
    optimizers,
    partings,
    ranks_of,
    replicas,
    spread,
)

_LEAST = 2  # steps: before the second one, nothing can have been exchanged between two


def _lacks_group(trace: Trace[Any]) -> str:
    """Return why processes that train apart could not be seen."""
    own = [c for courses in optimizers(trace) for c in courses if c.looks]
    if not own:
        return "the processes are in no group"
    if all(course.sharded or course.replicas for course in own):
        return "DistributedDataParallel or shards see to the exchange"
    return "" if min(course.made for course in own) >= _LEAST else "fewer than 2 steps were made"


def _lacks_buffers(trace: Trace[Any]) -> str:
    """Return why there are no buffers to compare."""
    found = any(c.buffers for group in replicas(trace, lone=True) for c in group.courses)
    return "" if found else "no buffers are kept apart (broadcast_buffers=False)"


@invariant("ranks", evidence=evidence)
def replicas_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All replicas of a model hold the same parameters.

    Judges: checksums of an optimizer's parameters, before the first step and after the first 8,
        then after ever fewer, in the processes of one DistributedDataParallel; without it, in those
        that held the same after some step, or whose gradients have the same norms in each.
    Allows: nothing; a note where norms of gradients and updates differ by no more than 1 in 1e4,
        and the parameters were the same at some time.
    Misses: what is sharded; what is between the steps that are looked at; frozen parameters.
    Why: each process trains a model of its own, and one of them is kept.
    Source: BLOOM's drifting norms (DeepSpeed#1801); pytorch#104336, #69031; accelerate#2665.
    """
    for group in replicas(trace):
        if not group.in_step:
            continue
        apart, looks = partings(group.courses, lambda course: course.sums)
        if not apart:
            continue
        place = apart[0]
        values = [course.sums[place] for course in group.courses]
        odd = odd_ones(values, ranks_of(group.courses))
        step, name = group.courses[0].looks[place], _name(group, place)
        where = group.at(step, odd) if step >= 0 else f"before the first step, {ranks_text(odd)}"
        yield Finding(
            f"the replicas of `{trace.subject}` hold different parameters",
            where + (f", {name}" if name else ""),
            portion(len(apart), looks, "looks") + " found different bits",
            "the same bits in all processes",
            why=_why(group, step),
            rank=Rank.BROKEN if len(apart) == looks or _differs(group) else Rank.NOTE,
            source=group.courses[0].source,
        )


@invariant("ranks", evidence=evidence)
def gradients_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All replicas make each step with the same gradient.

    Judges: the norm of the gradient that each step of an optimizer was made with, in the processes
        of one DistributedDataParallel that made equally many steps.
    Allows: a relative difference of 1e-4.
    Misses: different gradients of the same norm; what is sharded.
    Why: without the average each process follows its own batches: the wrapped model was gone
        around (`model.module(x)`), or `no_sync` held for the last micro-batch.
    Source: pytorch#136009; accelerate#3256; FunASR#3472 (no_sync on the wrong micro-batch).
    """
    for group in replicas(trace):
        apart, length = gradient_partings(group)
        if not apart:
            continue
        norms = [course.norms[apart[0]] for course in group.courses]
        odd = odd_ones(norms, ranks_of(group.courses))
        steps = group.courses[0].steps
        low, high = number(min(norms)), number(max(norms))
        yield Finding(
            f"the replicas of `{trace.subject}` step with different gradients",
            group.at(steps[apart[0]], odd),
            portion(len(apart), length, "steps") + f", first with norms {low} and {high}",
            "one gradient, the average of all",
            why="perhaps `model.module(...)` was called instead of `model(...)`, or `no_sync` held"
            " at the last micro-batch",
            source=group.courses[0].source,
        )


@invariant("ranks", evidence=_lacks_group)
def processes_exchange_gradients(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Processes that train the same model communicate between their steps.

    Judges: runs whose processes have made a group, hold the same parameters before their first
        step, and different ones after it: whether the group did anything between two steps.
    Allows: nothing, from 2 steps on. Processes that begin with different parameters.
    Misses: exchanges through other libraries than torch.distributed are seen as none: excuse it.
    Why: DistributedDataParallel was left out; each process trains on its share of the data alone.
    Source: transformers#34242; the tutorial of DistributedDataParallel.
    """
    for courses in optimizers(trace):
        own = [c for c in courses if c.looks and not (c.sharded or c.replicas)]
        if len(own) < 2 or min(course.made for course in own) < _LEAST:
            continue
        alike = len({(c.names, c.looks[0], c.sums[0]) for c in own}) == 1
        if alike and len({c.sums[-1] for c in own}) > 1 and not any(c.exchanged for c in own):
            yield Finding(
                f"the processes of `{trace.subject}` exchange nothing between their steps",
                at_step(own[0].looks[1] if len(own[0].looks) > 1 else 0)
                + f" of {own[0].optimizer}",
                integer(0, "exchanges") + f" between {own[0].made} steps of {len(own)} processes",
                "gradients or parameters are exchanged",
                why="perhaps the model was not wrapped in DistributedDataParallel",
                source=own[0].source,
            )


@invariant("ranks", evidence=_lacks_buffers)
def buffers_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas end with the same buffers, even if these are not broadcast.

    Judges: a checksum of all buffers after the last step that was looked at, where
        DistributedDataParallel was told not to broadcast them. A note: it may be meant.
    Allows: whatever differs where they are broadcast: that happens at the next pass forward.
    Misses: buffers that are wrong in all processes alike.
    Why: running statistics are those of one process's batches, and another's evaluate worse.
    Source: pytorch#31771.
    """
    for group in replicas(trace, lone=True):
        own = [course for course in group.courses if course.buffers]
        if len(own) < 2 or len({course.buffers[-1] for course in own}) == 1:
            continue
        odd = odd_ones([course.buffers[-1] for course in own], ranks_of(own))
        yield note(
            f"the buffers of `{trace.subject}` are others in each process",
            group.at(own[0].looks[-1], odd),
            "different bits, and broadcast_buffers is off",
            "the same in all processes, or broadcast before each pass",
            why="running statistics of a process are those of its own batches alone",
            source=own[0].source,
        )


def _name(group: ReplicaGroup, place: int) -> str:
    """Return the name of the first parameter that differs at a look."""
    first = group.courses[0]
    for i, name in enumerate(first.names):
        its = slice(i * SUM_DIGITS, (i + 1) * SUM_DIGITS)
        if len({course.sums[place][its] for course in group.courses}) > 1:
            return name
    return ""


def _differs(group: ReplicaGroup) -> bool:
    """Say whether replicas are further apart than roundings can bring them."""
    apart = [
        spread([getattr(course, column)[i] for course in group.courses])
        for column in ("norms", "updates", "rates")
        for i in partings(group.courses, attrgetter(column))[0]
    ]
    return max(apart, default=0.0) > ROUNDING


def _why(group: ReplicaGroup, step: int) -> str:
    """Guess what has brought replicas apart, from what else differs."""
    if step < 0:
        return "they begin with different parameters: nobody broadcast those of one process"
    for column, why in (
        ("rates", "their learning rates differ"),
        ("norms", "their gradients differ: the wrapped model was perhaps gone around"),
    ):
        if partings(group.courses, attrgetter(column))[0]:
            return why
    return "rates and gradients are alike: perhaps the optimizer's state is not"
