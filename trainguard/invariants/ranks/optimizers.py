"""Judgements of the optimizers of replicas: one plan, kept by all processes."""

from collections.abc import Callable, Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import number, portion
from trainguard.events.ranks import RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ReplicaGroup,
    evidence,
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
