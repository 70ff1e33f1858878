"""Batches of several sizes, cut for several processes in several ways, as Hypothesis draws them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

from hypothesis import strategies as st

from trainguard.observe.tools.structure import explore_arguments, keep_new
from trainguard.subjects.domain import BATCH
from trainguard.subjects.parallel import Parallel


@dataclass(frozen=True)
class BatchSplit:
    """A batch: its sizes, its seed, and for each number of processes the rows of each part."""

    sizes: Mapping[str, int]
    rows: Mapping[int, tuple[int, ...]]
    seed: int

    @property
    def extent(self) -> tuple[int, ...]:
        """How large it is: its rows, how unequal its parts are, its other dimensions."""
        apart = sum(max(counts) - min(counts) for counts in self.rows.values())
        return self.sizes[BATCH], apart, *(size for _, size in sorted(self.sizes.items()))

    def tell(self, world: int) -> str:
        """Return it in the words of a declaration, and the rows of each part."""
        rows = ", ".join(map(str, self.rows[world]))
        return f"ranks={world}, sizes={dict(sorted(self.sizes.items()))}, cut into {rows} rows"


def draw_splits(subject: Parallel, batches: int, count: int, seed: int) -> list[BatchSplit]:
    """Return so many batches of the largest sizes, and up to so many more that are drawn."""
    sizes = {name: most for name, (_, most) in subject.spans.items()}
    rows = {world: subject.rows(world, sizes[BATCH]) for world in (1, *subject.worlds)}
    splits = [BatchSplit(sizes, rows, seed + place) for place in range(batches)]
    return splits + (_draw(subject, count, seed) if subject.is_drawn else [])


def draw_smaller(subject: Parallel, known: BatchSplit, count: int) -> list[BatchSplit]:
    """Return up to so many that are smaller than a known one, the smallest first."""
    drawn = _draw(subject, count, known.seed) if subject.is_drawn else []
    smaller = (each for each in drawn if each.extent < known.extent)
    return sorted(smaller, key=lambda each: each.extent)


def _draw(subject: Parallel, count: int, seed: int) -> list[BatchSplit]:
    """Draw up to so many different ones that the declaration admits."""
    drawn: list[BatchSplit] = []
    explore_arguments(_splits(subject, seed), keep_new(drawn), count, seed)
    return drawn


@st.composite
def _splits(draw: st.DrawFn, subject: Parallel, seed: int) -> BatchSplit:
    """Draw one: its sizes, then where it is cut."""
    step = 1 if subject.uneven else lcm(*subject.worlds)
    spans = dict(subject.spans)
    least, most = spans.pop(BATCH)
    count = step * draw(st.integers(-(-least // step), most // step))
    sizes = {BATCH: count, **{name: draw(st.integers(*span)) for name, span in spans.items()}}
    rows: dict[int, tuple[int, ...]] = {1: (count,)}
    for world in subject.worlds:
        parts = subject.count_parts(world)
        cuts = set(range(count // parts, count, count // parts))
        if subject.uneven and cuts:
            within = st.integers(1, count - 1)
            cuts = draw(st.sets(within, min_size=parts - 1, max_size=parts - 1))
        rows[world] = tuple(end - start for start, end in pairwise([0, *sorted(cuts), count]))
    return BatchSplit(sizes, rows, seed)
