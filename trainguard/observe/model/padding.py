"""
The probe of padding that is not ignored.

"padding": how much the outputs at positions that are kept, or of whole samples, change when an
input is edited where it is padded, relative to the largest output; 0 for each output
that no padding reaches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainguard.events.trace import Pass
from trainguard.observe.model.dependency import Question, leak_events, leaks
from trainguard.observe.model.frozen_copy import FrozenCopy, raise_unjudged
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.output_axes import entering, layouts, shapes_of
from trainguard.subjects.domain import BATCH, Domain


@dataclass(frozen=True)
class Padding:
    """The input that marks padding, and the dimension of which the end is padded."""

    name: str
    domain: Domain
    dimension: str

    def kept_mask(self, network: ModelCase) -> Tensor:
        """Return which positions of each sample are kept, [B, T]: of the first sample, all."""
        size, count = network.sizes[self.dimension], network.sizes.get(BATCH, 1)
        cycle = (size, size // 2, size - 1, 1) if count > 1 else (size // 2,)
        lengths = torch.tensor([max(1, cycle[i % len(cycle)]) for i in range(count)])
        return torch.arange(size) < lengths[:, None]

    def value(self, network: ModelCase) -> Tensor:
        """Return the input that says so: a mask, or the lengths of the samples."""
        kept, drawn = self.kept_mask(network), network.draw()[self.name]
        if self.domain.kind != "mask":
            return kept.sum(1).to(drawn)
        keep, padding = (torch.as_tensor(value).to(drawn) for value in self.domain.values)
        return torch.where(self.spread(kept, drawn, self.domain.shape or ()), keep, padding)

    def spread(self, kept: Tensor, tensor: Tensor, words: tuple[str, ...]) -> Tensor:
        """Return a [B, T] mask in the shape of a tensor of named dimensions."""
        axes = words.index(BATCH) if BATCH in words else None, words.index(self.dimension)
        return place_mask(kept, tuple(tensor.shape), *axes).to(tensor.device)


def observe(network: ModelCase) -> Iterator[Pass]:
    """Ask whether what is kept depends on what stands in padded positions."""
    padding = _find_padding(network)
    if padding is None or network.sizes[padding.dimension] < 2:
        raise_unjudged(
            network, "what marks padding is neither a tg.mask nor the lengths of the samples"
        )
        return
    specimen = FrozenCopy.of(network)
    specimen.fix(padding.name, padding.value)
    question = Question(_own(specimen, padding), _padding_masks(specimen, padding))
    if not question.own:
        raise_unjudged(
            network, "none of its outputs has a part for each sample, or for each position"
        )
    if not question.foreign:
        raise_unjudged(network, f"no input has the dimensions of {padding.name}")
    at = f"the end of {padding.dimension} padded"
    yield from leak_events(network, "padding", question, leaks(specimen, question), at)


def _find_padding(network: ModelCase) -> Padding | None:
    """Return what marks padding; None where it cannot be told how it does so."""
    name = network.model.padding or ""
    domain = network.model.tensors.get(name)
    if domain is None or not domain.names:
        return None
    if domain.kind == "mask":
        return Padding(name, domain, domain.names[-1])
    bound = domain.high if isinstance(domain.high, str) else ""
    lengths = domain.kind == "integer" and domain.shape == (BATCH,) and bound in network.sizes
    return Padding(name, domain, bound) if lengths else None


def _own(specimen: FrozenCopy, padding: Padding) -> dict[str, list[Tensor]]:
    """Return for each output a mask of what belongs to kept positions, or to whole samples."""
    shapes, kept = shapes_of(specimen), padding.kept_mask(specimen.network)
    rows = layouts(specimen, BATCH) if BATCH in specimen.network.sizes else {}
    found = {}
    for name, ways in layouts(specimen, padding.dimension).items():
        samples = rows.get(name, [])
        if ways is None or samples is None or not all(way.plain for way in (*ways, *samples)):
            continue
        if ways:
            axes = samples[0].axis if samples else None, ways[0].axis
            found[name] = [place_mask(kept, shapes[name], *axes)]
        elif samples and _is_pooled(specimen, padding, name, shapes[name], samples[0].axis):
            found[name] = [torch.ones(shapes[name], dtype=torch.bool)]
    return found


def _is_pooled(
    specimen: FrozenCopy, padding: Padding, name: str, shape: tuple[int, ...], sample: int
) -> bool:
    """Say whether no axis of an output can hold padded positions, pooled or reduced."""
    axes = {sample, len(shape) - 1}
    if len(shape) > 2:
        words = {
            word for domain in specimen.network.model.tensors.values() for word in domain.names
        }
        for dimension in sorted(words - {BATCH, padding.dimension}):
            ways = layouts(specimen, dimension).get(name) or []
            axes |= {way.axis for way in ways if way.plain}
    return axes == set(range(len(shape)))


def _padding_masks(specimen: FrozenCopy, padding: Padding) -> dict[str, Tensor]:
    """Return for each input with the dimensions of the padding a mask of what is padded."""
    inputs, kept = specimen.draw(), padding.kept_mask(specimen.network)
    masks = {}
    for name, words in entering(specimen).items():
        once = words.count(padding.dimension) == 1
        batched = BATCH in words or len(kept) == 1
        if once and batched and name != padding.name:
            masks[name] = padding.spread(~kept, inputs[name], words).cpu()
    return masks


def place_mask(mask: Tensor, shape: tuple[int, ...], row: int | None, column: int) -> Tensor:
    """Return a [B, T] mask spread over a shape in which B and T are at given axes."""
    ones = [1] * len(shape)
    ones[column] = mask.shape[1]
    if row is None:
        return mask.any(0).view(ones).expand(shape)
    ones[row] = mask.shape[0]
    turned = mask if row < column else mask.T
    return turned.reshape(ones).expand(shape)
