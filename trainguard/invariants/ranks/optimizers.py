"""Judgements of the optimizers of replicas: one plan, kept by all processes."""

from collections.abc import Callable, Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import number, portion, ranks_text
from trainguard.events.ranks import RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ReplicaGroup,
    evidence,
    gradient_partings,
    odd_ones,
    partings,
    ranks_of,
    replicas,
)


def _lacks_scales(trace: Trace[Any]) -> str:
    """Return why there are no factors to compare."""
    missing = evidence(trace)
    scaled = any({*c.scales} - {1.0} for group in replicas(trace) for c in group.courses)
    return missing or ("" if scaled else "no loss was scaled")


@invariant("ranks", evidence=evidence)
def optimizers_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas step with the same learning rates, parameter groups and optimizer state.

    Judges: the rates of all parameter groups in each step, and checksums of what the optimizer
        keeps (momenta, steps) where parameters are looked at, in processes that are replicas and
        made equally many steps. A note where the parameters stay the same all the same.
    Allows: nothing. A state that each process has a part of (ZeroRedundancyOptimizer).
    Misses: momentum and other settings of groups; a state lost on the way, which is judged by the
        parameters, or that follows from other gradients, which are judged by themselves.
    Why: a scheduler that is advanced by one process's loss, length or clock lets replicas part, and
        so does an optimizer that one process alone has loaded.
    Source: post-mortems, row D8; pytorch#104336.
    """
    for group in replicas(trace):
        if group.in_step:
            yield from _compare(
                trace,
                group,
                lambda course: course.rates,
                "are stepped with different learning rates",
                _rates_text,
                "perhaps a scheduler is told what only one process knows, or advanced more often",
            )
            yield from _compare_states(trace, group)


@invariant("ranks", evidence=_lacks_scales)
def scale_is_shared(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All replicas use the same loss scale.

    Judges: the factor of the gradient scaler in each step, in processes that are replicas and made
        equally many steps.
    Allows: nothing.
    Misses: a factor that is the same and wrong; what is sharded.
    Why: a process that skips a step for an overflow that only it saw goes its own way from there.
    Source: pytorch#136009; the documentation of ShardedGradScaler.
    """
    for group in replicas(trace):
        if group.in_step:
            yield from _compare(
                trace,
                group,
                lambda course: course.scales,
                "scale their losses differently",
                number,
                "perhaps an overflow is looked for before the gradients are averaged",
            )


def _compare_states(trace: Trace[Any], group: ReplicaGroup) -> Iterator[Finding]:
    """Yield a finding where optimizers keep something else, at the first look or in all of them."""
    apart, length = partings(group.courses, lambda course: course.states)
    looks = group.courses[0].looks
    known = [i for i in apart if looks[i] < 0 or all(c.states[i] for c in group.courses)]
    gradients, _ = gradient_partings(group)
    follows = gradients and known and group.courses[0].steps[gradients[0]] <= looks[known[0]]
    if not known or follows:
        return
    odd = odd_ones([course.states[known[0]] for course in group.courses], ranks_of(group.courses))
    step, begins = looks[known[0]], looks[known[0]] < 0
    part, _ = partings(group.courses, lambda course: course.sums)
    yield Finding(
        f"the optimizers of `{trace.subject}` keep different states",
        f"before the first step, {ranks_text(odd)}" if begins else group.at(step, odd),
        portion(len(known), length, "looks") + " found different bits",
        "the same bits in all processes",
        why="perhaps one process alone has loaded a checkpoint" if begins else "",
        rank=Rank.BROKEN if part else Rank.NOTE,
        source=group.courses[0].source,
    )


def _compare(
    trace: Trace[Any],
    group: ReplicaGroup,
    column: Callable[[RankCourse], Any],
    verb: str,
    text: Callable[[Any], str],
    why: str,
) -> Iterator[Finding]:
    """Yield a finding of the first step at which a column differs."""
    apart, length = partings(group.courses, column)
    if apart:
        values = [column(course)[apart[0]] for course in group.courses]
        odd = odd_ones(values, ranks_of(group.courses))
        one = values[ranks_of(group.courses).index(odd[0])]
        other = next(value for value in values if value != one)
        yield Finding(
            f"the replicas of `{trace.subject}` {verb}",
            group.at(group.courses[0].steps[apart[0]], odd),
            portion(len(apart), length, "steps") + f", first {text(one)} against {text(other)}",
            "the same in all processes",
            why=why,
            source=group.courses[0].source,
        )


def _rates_text(rates: tuple[float, ...]) -> str:
    """Write the first rates of some groups."""
    shown = ", ".join(f"{rate:.4g}" for rate in rates[:3])
    return shown + (f" and {len(rates) - 3} more" if len(rates) > 3 else "")
