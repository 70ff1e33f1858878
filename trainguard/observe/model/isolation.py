"""
The probes of what must not depend on what: other samples, later positions, padding.

"mixed": how much the outputs of one sample (`at`) change when an input of the others is edited,
relative to the largest output; 0 for each output that no other sample reaches. `detail` is the
module in which samples first mix, where that can be told.

"future": how much the outputs before a position (`at`) change when an input from there on is
edited, relative to the largest output; 0 for each output that no later input reaches. `detail` is
the module that looks ahead first, where that can be told.

"padding": how much the outputs at positions that are kept, or of whole samples, change when an
input is edited where it is padded, relative to the largest output; 0 for each output
that no padding reaches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.dependency import DependencyQuestion, Positions, leak_events, leaks
from trainguard.observe.model.frozen_copy import FrozenCopy, raise_unjudged
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.output_axes import entering, foreign, layouts, own, shapes_of
from trainguard.observe.model.padded_length import observe_padded_length
from trainguard.subjects.domain import BATCH, Domain

_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 what all of them derive from


def observe_samples(network: ModelCase) -> Iterator[Pass]:
    """Ask whether the outputs of one sample depend on the inputs of the others."""
    size = network.sizes.get(BATCH, 0)
    if size < 2:
        raise_unjudged(network, "its batches have one sample")
        return
    specimen = FrozenCopy.of(network)
    if _mixes_on_purpose(specimen.module):
        raise Unjudged("a batch norm without running statistics mixes samples on purpose")
    chosen = torch.arange(size) == size // 2
    question = DependencyQuestion(
        own(specimen, BATCH, chosen), foreign(specimen, BATCH, ~chosen), Positions(size, chosen)
    )
    if not question.own:
        raise_unjudged(network, "none of its outputs has one part for each sample")
    at = f"sample {size // 2} of {size}"
    yield from leak_events(network, "mixed", question, leaks(specimen, question), at)


def _mixes_on_purpose(module: nn.Module) -> bool:
    """Say whether a model normalises with the statistics of the batch in evaluation mode too."""
    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORM)]
    return any(norm.running_mean is None for norm in norms)


def observe_future(network: ModelCase) -> Iterator[Pass]:
    """Ask whether the outputs before a position depend on the inputs from there on."""
    dimension = network.model.causal or ""
    size = network.sizes.get(dimension, 0)
    if size < 2:
        raise_unjudged(network, f"{dimension} is never longer than one position")
        return
    cut = _cut(size)
    specimen, before = FrozenCopy.of(network), torch.arange(size) < cut
    question = DependencyQuestion(
        own(specimen, dimension, before),
        _later(specimen, dimension, ~before),
        Positions(size, before),
    )
    if not question.own:
        raise_unjudged(
            network, f"none of its outputs has one part for each position of {dimension}"
        )
    at = f"{dimension} < {cut} of {size}"
    yield from leak_events(network, "future", question, leaks(specimen, question), at)


def _cut(size: int) -> int:
    """
    Return a position near the middle that is no end of a block.

    Within blocks of two, three or any divisor of the length, outputs may see ahead to their end.
    """
    able = (cut for cut in range(1, size) if gcd(cut, 6 * size) == 1)
    return min(able, key=lambda cut: abs(2 * cut - size))


def _later(specimen: FrozenCopy, dimension: str, after: Tensor) -> dict[str, Tensor]:
    """Return the later parts of the inputs; masks are none of what is to be predicted."""
    tensors, padding = specimen.network.model.tensors, specimen.network.model.padding
    found = foreign(specimen, dimension, after)
    return {n: m for n, m in found.items() if tensors[n].kind != "mask" and n != padding}


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


def observe_padding(network: ModelCase) -> Iterator[Pass]:
    """Ask whether what is kept depends on what stands in padded positions."""
    padding = _find_padding(network)
    if padding is None or network.sizes[padding.dimension] < 2:
        raise_unjudged(
            network, "what marks padding is neither a tg.mask nor the lengths of the samples"
        )
        return
    specimen = FrozenCopy.of(network)
    specimen.fix(padding.name, padding.value)
    question = DependencyQuestion(_own(specimen, padding), _padding_masks(specimen, padding))
    if not question.own:
        raise_unjudged(
            network, "none of its outputs has a part for each sample, or for each position"
        )
    if not question.foreign:
        raise_unjudged(network, f"no input has the dimensions of {padding.name}")
    at = f"the end of {padding.dimension} padded"
    yield from leak_events(network, "padding", question, leaks(specimen, question), at)
    ways = layouts(specimen, padding.dimension)
    pooled = {name for name in question.own if ways.get(name) == []}
    kept = padding.kept_mask(network)
    yield from observe_padded_length(specimen, padding.name, padding.dimension, kept, pooled)


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
