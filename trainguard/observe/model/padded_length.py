"""
The probe of how far a sample is padded.

"padded length": how much the outputs of one sample change when its padding is cut off, relative to
the largest; of outputs without a part for each position, such as classes.
"""

from collections.abc import Iterator

from torch import Tensor

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import apart
from trainguard.observe.model.frozen_copy import FrozenCopy
from trainguard.observe.model.model_case import Inputs
from trainguard.observe.model.output_axes import OutputAxis, entering, layouts
from trainguard.subjects.domain import BATCH

_ROUNDING = 1e-6


def observe_padded_length(
    specimen: FrozenCopy, mark: str, dimension: str, kept: Tensor, names: set[str]
) -> Iterator[Pass]:
    """
    Yield one event for each named output: how far it follows the length that is padded to.

    mark: the input that marks padding, along a dimension; kept: which positions are none, [B, T].
    """
    if len(kept) < 2 or not names:
        return
    row, length = 1, int(kept[1].sum())
    rows = layouts(specimen, BATCH)
    ways = {name: own[0] for name in names if len(own := rows.get(name) or []) == 1}
    gaps = _compare(specimen, mark, dimension, ways, (row, length))
    if any(gap > _ROUNDING for gap in gaps.values()):
        gaps = _compare(specimen.precise(), mark, dimension, ways, (row, length))
    size = specimen.network.sizes[dimension]
    at = f"sample {row}, of which {length} of {size} positions of {dimension} are kept"
    for name, gap in gaps.items():
        yield specimen.network.make_event("padded length", place=name, at=at, measured=gap)


def _compare(
    specimen: FrozenCopy,
    mark: str,
    dimension: str,
    ways: dict[str, OutputAxis],
    cut: tuple[int, int],
) -> dict[str, float]:
    """Return how far outputs of a sample change where its batch is as long as the sample."""
    row, length = cut
    inputs = specimen.draw()
    whole, again = (specimen.call(inputs, seed).tensors for seed in range(2))
    try:
        short = specimen.call(_cut_off(specimen, inputs, mark, dimension, length)).tensors
    except SubjectError:  # it takes one length only
        return {}
    found = {}
    for name, way in ways.items():
        if name in short and short[name].shape == whole[name].shape:
            drawn = apart(whole[name], again[name]) > _ROUNDING
            gap = apart(way.part(short[name], row), way.part(whole[name], row))
            found[name] = 0.0 if drawn else gap
    return found


def _cut_off(
    specimen: FrozenCopy, inputs: Inputs, mark: str, dimension: str, length: int
) -> Inputs:
    """Return inputs of which only the first positions are left."""
    axes = {n: w.index(dimension) for n, w in entering(specimen).items() if dimension in w}
    cut = {
        name: value.narrow(axes[name], 0, length) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
        if name in axes
    }
    lengths = inputs[mark]
    if mark not in axes and isinstance(lengths, Tensor):
        cut[mark] = lengths.clamp(max=length)
    return {**inputs, **cut}
