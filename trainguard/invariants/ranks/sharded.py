"""Judgements of models of which each process holds a part: what several hold stays the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import number, portion
from trainguard.events.ranks import SUM_DIGITS, RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ROUNDING,
    ReplicaGroup,
    odd_ones,
    optimizers,
    ranks_of,
    spread,
)

_FEW = 4  # steps with inputs that are known
_OFTEN = 0.5  # of the steps: losses of one batch that differ by chance are rarer


@dataclass(frozen=True, slots=True)
class _Held:
    """
    A parameter that several processes hold, the sums of which are told.

    plain: whether it is no distributed tensor, so that the mesh of others alone says who holds it.
    """

    name: str
    plain: bool
    courses: tuple[RankCourse, ...]
    place: int

    def sums(self, look: int) -> list[str]:
        """Return its sum in each process at a look."""
        its = slice(self.place * SUM_DIGITS, (self.place + 1) * SUM_DIGITS)
        return [course.sums[look][its] for course in self.courses]

    def parted(self) -> int | None:
        """Return the first look at which the processes differ, if any."""
        looks = range(min(len(course.sums) for course in self.courses))
        return next((look for look in looks if len({*self.sums(look)}) > 1), None)

    def distance(self) -> float:
        """Return how far the norms are apart in the end, as a share of the largest."""
        return spread([course.sizes[self.place] for course in self.courses])


def _lacks_shares(trace: Trace[Any]) -> str:
    """Return why nothing of a sharded model can be compared."""
    if not any(course.sharded for own in optimizers(trace) for course in own):
        return "no parameters are sharded"
    return "" if any(_find_held(own) for own in optimizers(trace)) else "nothing is replicated"


def _lacks_losses(trace: Trace[Any]) -> str:
    """Return why no losses of one batch can be compared."""
    if any(_tensor_groups(trace)):
        return ""
    return "no two processes share the layers of one model, and a batch"


@invariant("ranks", evidence=_lacks_shares)
def replicated_parameters_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicated parameters of a sharded model are the same in every process.

    Judges: checksums, before the first step and after the first 8, then after ever fewer, of up to
        64 parameters that are replicated along a dimension of their mesh, among the processes of
        that dimension; of tensor parallelism also those that parallelize_module left as they are,
        where the processes have the same inputs and began alike.
    Allows: norms that differ by no more than 1 in 1e4 in the end: a note, as roundings make them.
        Parameters that were left as they are and part at the first step are a note, too.
    Misses: layers that are split by hand, without distributed tensors; the flat parameters of
        FullyShardedDataParallel.
    Why: norms and biases beside split layers get gradients of their own in each process, and what
        is scaled or dropped differently brings them apart: a checkpoint has those of one process.
    Source: BLOOM's norms, which drifted for 15 days (DeepSpeed#1801).
    """
    for own in optimizers(trace):
        held = _find_held(own)
        apart = [(look, each) for each in held if (look := each.parted()) is not None]
        apart = [(look, each) for look, each in apart if look > 0 or not each.plain]
        if apart:
            yield _tell_apart(trace, apart, len(held))


@invariant("ranks", evidence=_lacks_losses)
def replicated_activations_agree(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Tensor-parallel processes compute the same loss for the same batch.

    Judges: the losses of each step in a group of tensor parallelism whose processes have the same
        inputs, and draw different random numbers for them. A note: a process may take the loss of
        a part of the sequence.
    Allows: a relative difference of 1e-4; half of the steps. Random numbers that differ and change
        no loss, as for what is dropped of the part of a layer.
    Misses: what is dropped before a split layer: its sum is the same everywhere
        (replicated_parameters_agree sees what becomes of it); inputs that are not on the CPU.
    Why: dropout of a whole activation has to drop the same in each process of the group: else each
        of them trains its part for a model that the others do not have.
    Source: Megatron-LM, megatron/core/tensor_parallel/random.py (one state of the generator for
        what is replicated, another for what is split).
    """
    for own in _tensor_groups(trace):
        rows = [*zip(*(course.losses for course in own), strict=False)]
        apart = [i for i, row in enumerate(rows) if spread([*row]) > ROUNDING]
        if _draw_apart(own) and len(apart) > _OFTEN * len(rows):
            first = rows[apart[0]]
            yield note(
                f"processes that share the layers of `{trace.subject}` get different losses",
                ReplicaGroup(own[0].optimizer, tuple(own), declared=True).at(
                    own[0].steps[apart[0]], ranks_of(own)
                ),
                portion(len(apart), len(rows), "steps")
                + f", first {number(min(first))} and {number(max(first))}",
                "one loss of one batch",
                why="they draw different random numbers: seed the processes of a tensor group alike"
                " for what is dropped of whole activations",
                source=own[0].source,
            )


def _find_held(own: list[RankCourse]) -> list[_Held]:
    """Return what several of the processes hold, and tell of; nothing where steps were left out."""
    groups: dict[tuple[str, str], list[tuple[int, RankCourse]]] = {}
    for course in own:
        for place, share in enumerate(course.shares):
            groups.setdefault((course.names[place], share), []).append((place, course))
    found = []
    for (name, share), each in groups.items():
        courses, places = tuple(course for _, course in each), {place for place, _ in each}
        plain = share.endswith(" plain")
        in_step = len({(course.made, course.looks) for course in courses}) == 1
        if len(courses) < 2 or len(places) > 1 or not in_step:
            continue
        if not plain or _have_same_inputs(courses):
            found.append(_Held(name, plain, courses, places.pop()))
    return found


def _tell_apart(trace: Trace[Any], apart: list[tuple[int, _Held]], held: int) -> Finding:
    """Return the finding of what came apart first."""
    look, first = min(apart, key=lambda each: each[0])
    step = first.courses[0].looks[look]
    group = ReplicaGroup(first.courses[0].optimizer, first.courses, declared=True)
    odd = odd_ones(first.sums(look), ranks_of(first.courses))
    far = max(each.distance() for _, each in apart)
    sure = any(not each.plain or step > 0 for _, each in apart)
    return Finding(
        f"processes of `{trace.subject}` hold different values of replicated parameters",
        group.at(max(step, 0), odd) + f", {first.name}",
        portion(len(apart), held, "parameters")
        + f" differ, in the end by {number(100 * far, '%', '.3g')} of a norm",
        "the same bits in all processes that hold them",
        why="they draw different random numbers, which perhaps drop other parts of what is whole"
        if _draw_apart(first.courses)
        else "perhaps gradients are scaled by a norm of each process's own part, or not added up",
        rank=Rank.BROKEN if far > ROUNDING and sure else Rank.NOTE,
        source=first.courses[0].source,
    )


def _tensor_groups(trace: Trace[Any]) -> Iterator[list[RankCourse]]:
    """Yield the processes of each tensor group that have the same inputs, and as many steps."""
    for own in optimizers(trace):
        groups: dict[str, list[RankCourse]] = {}
        for course in own:
            if course.tensor and course.losses:
                groups.setdefault(course.tensor, []).append(course)
        for courses in groups.values():
            in_step = len({(course.made, course.steps) for course in courses}) == 1
            if len(courses) > 1 and in_step and _have_same_inputs(courses):
                yield courses


def _have_same_inputs(courses: "list[RankCourse] | tuple[RankCourse, ...]") -> bool:
    """Say whether processes have the same inputs in all steps of which they are known."""
    rows = [*zip(*(course.fingerprints for course in courses), strict=False)]
    known = [row for row in rows if all(any(inputs) for inputs in row)]
    return len(known) >= _FEW and all(len({*row}) == 1 for row in known)


def _draw_apart(courses: "list[RankCourse] | tuple[RankCourse, ...]") -> bool:
    """Say whether processes draw different random numbers for most of their steps."""
    rows = [row for row in zip(*(c.draws for c in courses), strict=False) if any(map(any, row))]
    return sum(len({*row}) > 1 for row in rows) > _OFTEN * len(rows)
