"""
The probe of declared relations.

"relation": 1 where a relation (`place`) is broken in one drawn batch (`at`), else 0; `detail` says
how.
"""

import copy
from collections.abc import Iterator

import torch

from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase, call_guarded

_BATCHES = 8  # drawn for each case


def observe(network: ModelCase) -> Iterator[Pass]:
    """Call a model with drawn batches and with each of them edited, in evaluation mode."""
    module = network.build().eval()
    for relation in network.model.relations:
        for seed in range(_BATCHES):
            inputs = network.draw(seed)
            edited = call_guarded(relation.edit_inputs, inputs)
            with torch.no_grad():
                before = network.call(module, copy.deepcopy(inputs)).returned
                after = network.call(module, edited).returned
            breach = call_guarded(relation.find_breach, before, after)
            at = f"batch {seed + 1} of {_BATCHES} that were drawn"
            yield network.make_event(
                "relation", place=relation.name, at=at, measured=float(bool(breach)), detail=breach
            )
