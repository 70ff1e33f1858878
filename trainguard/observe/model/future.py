"""
The probe of outputs that look ahead.

"future": how much the outputs before a position (`at`) change when an input from there on is
edited, relative to the largest output; 0 for each output that no later input reaches. `detail` is
the module that looks ahead first, where that can be told.
"""

from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

from trainguard.events.trace import Pass
from trainguard.observe.model.dependency import Question, leak_events, leaks
from trainguard.observe.model.frozen_copy import FrozenCopy, raise_unjudged
from trainguard.observe.model.locate_dependency import Positions
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.output_axes import foreign, own


def observe(network: ModelCase) -> Iterator[Pass]:
    """Ask whether the outputs before a position depend on the inputs from there on."""
    dimension = network.model.causal or ""
    size = network.sizes.get(dimension, 0)
    if size < 2:
        raise_unjudged(network, f"{dimension} is never longer than one position")
        return
    cut = _cut(size)
    specimen, before = FrozenCopy.of(network), torch.arange(size) < cut
    question = Question(
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
