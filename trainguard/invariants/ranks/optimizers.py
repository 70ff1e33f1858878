"""Judgements of the optimizers of replicas: one plan, kept by all processes."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import number, portion, ranks_text
from trainguard.events.ranks import RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ROUNDING,
    ReplicaGroup,
    evidence,
    odd_ones,
    partings,
    ranks_of,
    replicas,
    spread,
)


def _lacks_scales(trace: Trace[Any]) -> str:
    """Return why there are no factors to compare."""
    missing = evidence(trace)
    scaled = any({*c.scales} - {1.0} for group in replicas(trace) for c in group.courses)
    return missing or ("" if scaled else "no loss was scaled")


def _lacks_metrics(trace: Trace[Any]) -> str:
    """Return why nobody decides by a number of its own."""
    missing = evidence(trace)
    told = any(sum(map(bool, _metrics(group))) > 1 for group in replicas(trace))
    return missing or ("" if told else "no two replicas tell a scheduler a metric")


@invariant("ranks", evidence=evidence)
def optimizers_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas are stepped with the same learning rates, in the same groups.

    Judges: the rates of all parameter groups in each step, in processes that are replicas and made
        equally many steps.
    Allows: nothing.
    Misses: momentum and other settings of groups; an optimizer's state, except by the parameters.
    Why: a scheduler that is advanced by one process's loss, length or clock lets replicas part.
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


@invariant("ranks", evidence=_lacks_scales)
def scale_is_shared(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas scale their losses by the same factor.

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


@invariant("ranks", evidence=_lacks_metrics)
def decisions_are_shared(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas decide by the same numbers.

    Judges: what each process tells its scheduler (ReduceLROnPlateau), time after time, in processes
        that are replicas and made equally many steps. A note as long as the rates are alike.
    Allows: a part in 1e4, as roundings make it. A scheduler that one process alone has told.
    Misses: decisions that no scheduler makes: to stop early, which model was the best.
    Why: the loss of a process's own share sinks when that of another does not; from the first
        decision that differs each process follows a plan of its own.
    Source: post-mortems, row D8; the documentation of Lightning's `sync_dist`.
    """
    for group in replicas(trace):
        courses = [course for course in group.courses if course.metrics]
        if len(courses) < 2 or not group.in_step or len({len(c.metrics) for c in courses}) > 1:
            continue
        places, length = partings(courses, attrgetter("metrics"))
        apart = [i for i in places if spread([c.metrics[i] for c in courses]) > ROUNDING]
        if apart:
            first = [course.metrics[apart[0]] for course in courses]
            parted, _ = partings(group.courses, attrgetter("rates"))
            yield Finding(
                f"the replicas of `{trace.subject}` decide by different numbers",
                f"{courses[0].metric or 'the metric'} of {group.optimizer}'s scheduler, "
                + ranks_text(ranks_of(courses)),
                portion(len(apart), length, "times")
                + f", first {number(min(first))} and {number(max(first))}",
                "one number, which all processes have",
                why="it is of one process's share of the data: dist.all_reduce it, or broadcast it"
                " from one process",
                rank=Rank.BROKEN if parted else Rank.NOTE,
                source=courses[0].source,
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


def _metrics(group: ReplicaGroup) -> list[tuple[float, ...]]:
    """Return what each of some replicas has told its scheduler."""
    return [course.metrics for course in group.courses]


def _rates_text(rates: tuple[float, ...]) -> str:
    """Write the first rates of some groups."""
    shown = ", ".join(f"{rate:.4g}" for rate in rates[:3])
    return shown + (f" and {len(rates) - 3} more" if len(rates) > 3 else "")
