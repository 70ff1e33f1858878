"""
The probe of samples that mix.

"mixed": how much the outputs of one sample (`at`) change when an input of the others is edited,
relative to the largest output; 0 for each output that no other sample reaches. `detail` is the
module in which samples first mix, where that can be told.
"""

from collections.abc import Iterator

import torch
from torch import nn

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.dependency import Question, leak_events, leaks
from trainguard.observe.model.frozen_copy import FrozenCopy, raise_unjudged
from trainguard.observe.model.locate_dependency import Positions
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.output_axes import foreign, own
from trainguard.subjects.domain import BATCH

_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 what all of them derive from


def observe(network: ModelCase) -> Iterator[Pass]:
    """Ask whether the outputs of one sample depend on the inputs of the others."""
    size = network.sizes.get(BATCH, 0)
    if size < 2:
        raise_unjudged(network, "its batches have one sample")
        return
    specimen = FrozenCopy.of(network)
    if _mixes_on_purpose(specimen.module):
        raise Unjudged("a batch norm without running statistics mixes samples on purpose")
    chosen = torch.arange(size) == size // 2
    question = Question(
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
