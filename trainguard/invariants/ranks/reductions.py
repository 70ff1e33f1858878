"""Judgements of what is added up over processes: whether the sum fits into its dtype."""

from collections.abc import Iterator
from math import floor, fsum, isfinite, log2, prod
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import at_step, number
from trainguard.events.ranks import FEW_VALUES, RankCourse, Reduction
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.collectives import name_ranks
from trainguard.invariants.ranks.wording import optimizers

_DIGITS = {"float16": 10, "bfloat16": 7}  # of two, behind the point
_CHANCE = 1e-3  # that numbers which are no counts have no fraction
_Row = tuple[int, list[tuple[float, ...]], tuple[float, ...]]  # a step, all inputs, the output


def _lacks_reductions(trace: Trace[Any]) -> str:
    """Return why no sum can be held against what was added up."""
    if any(_rows(own) for own in _group_reductions(trace)):
        return ""
    return "nothing was added up over all processes in 16 bits, or in small integers"


@invariant("ranks", evidence=_lacks_reductions)
def reduction_keeps_its_dtype(trace: Trace[Any]) -> Iterator[Finding]:
    """
    The sum of an `all_reduce` fits into its dtype.

    Judges: each all_reduce of up to 8 values in float16, bfloat16 or integers of up to 32 bits,
        the first 16 times and then ever more rarely, against the sum of what all processes gave:
        one that is not finite, wraps around, or is not the sum of counts; larger ones in float16
        whose sum made a step with a gradient that is not finite, without a scaler.
    Allows: reductions in 16 bits as such (compressing hooks, reduce_dtype): sums that are rounded,
        of numbers that have fractions, or are so large that their dtype has none.
    Misses: asynchronous calls; values that were rounded before; integers that are divided after.
    Why: float16 ends at 65504 and counts to 2048, bfloat16 to 256: a loss that is divided by such a
        number of tokens is scaled wrongly, or is 0.
    Source: pytorch#123362 (float16 gradients are divided before and after their reduction, not to
        overflow); torchtitan#2336.
    """
    for own in _group_reductions(trace):
        rows = _rows(own)
        found = next(_find_wrong(trace, own[0].kind, rows), None)
        if found is not None:
            step, exact, measured = found
            group = f" of {name_ranks(own[0].group)}"
            yield Finding(
                f"a sum over the processes of `{trace.subject}` does not fit into its dtype",
                at_step(step) + f", `{own[0].kind}`" + group,
                number(measured),
                number(exact, "", ".6g") + ", the sum of what the processes gave"
                if isfinite(exact)
                else "a finite sum, as all processes gave finite numbers",
                why="add it up in float32 or int64: dist.all_reduce(value.float())",
                source=own[0].source,
            )


def _group_reductions(trace: Trace[Any]) -> list[list[Reduction]]:
    """Return the reductions of each line, where all processes of the group tell of them."""
    groups: dict[Any, list[Reduction]] = {}
    for event in trace:
        if isinstance(event, Reduction):
            groups.setdefault((event.group, event.kind, event.source), []).append(event)
    return [own for own in groups.values() if len(own) == _count_ranks(own[0].group) > 1]


def _count_ranks(group: str) -> int:
    """Return how many processes a group has ("0:8:2 4")."""
    ranks = group.partition(" ")[0]
    if ":" not in ranks:
        return ranks.count(",") + 1
    return len(range(*map(int, ranks.split(":"))))


def _rows(own: list[Reduction]) -> list[_Row]:
    """Return the calls of one line that all processes made."""
    if len({(e.places, e.steps) for e in own}) > 1:
        return []
    outputs = own[0].outputs or ((),) * len(own[0].places)
    columns = zip(own[0].steps, zip(*(e.inputs for e in own), strict=False), outputs, strict=False)
    return [(step, [*inputs], output) for step, inputs, output in columns]


def _find_wrong(
    trace: Trace[Any], kind: str, rows: list[_Row]
) -> Iterator[tuple[int, float, float]]:
    """Yield the step, the sum and what came instead of it, of each call with another sum."""
    dtype = kind.partition(",")[0].rpartition(" ")[2]
    mean = kind.endswith("AVG")
    if not kind.endswith(("SUM", "AVG")):
        return
    for place in range(FEW_VALUES):
        given = [v[place] for _, inputs, out in rows for v in inputs if place < len(out)]
        exactly = dtype not in _DIGITS or (not mean and _are_counts(given, _DIGITS[dtype]))
        for step, inputs, output in rows:
            values = [v[place] for v in inputs if place < len(output)]
            if values and all(map(isfinite, values)):
                exact = fsum(values) / (len(values) if mean else 1)
                if not isfinite(output[place]) or (exactly and output[place] != exact):
                    yield step, exact, output[place]
    for step, inputs, output in rows:
        if not output and all(isfinite(v) for own in inputs for v in own):
            norms = [_norm_of(own, step) for own in optimizers(trace) if len(own) == len(inputs)]
            if len(norms) == 1 and not isfinite(norms[0]):
                yield step, float("inf"), norms[0]


def _are_counts(values: list[float], digits: int) -> bool:
    """Say whether numbers without a fraction would have some if they were no counts."""
    if not all(isfinite(v) and v == floor(v) for v in values):
        return False
    chances = (min(2.0 ** (floor(log2(abs(v))) - digits), 1.0) for v in values if v)
    return prod(chances) < _CHANCE


def _norm_of(own: list[RankCourse], step: int) -> float:
    """Return the norm of the gradient that a step was made with, 0 where a scaler sees to it."""
    course = own[0]
    if step not in course.steps:
        return 0.0
    place = course.steps.index(step)
    return course.norms[place] if course.scales[place] == 1.0 else 0.0
