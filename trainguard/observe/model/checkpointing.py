"""
The probe of activation checkpointing.

"checkpointed": how far the gradient of a parameter (`place`) with checkpointing is from the one
    without, relative to its own norm, or to a share of the largest one where it is tiny; in
    training mode, from the same seed. It is infinite where only one of the two is there.
"checkpointing fails": 1 where the model cannot be trained with it; `detail` says why.
"saved": how many tensors are kept for backward with it; `reference` without.
"""

from collections.abc import Iterator
from math import inf

import torch
from torch import Tensor, nn

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase, call_guarded, describe_error

_TINY = 1e-3  # of the largest norm of a gradient: below it, rounding is all there is
_NOISE = 1e-5

Gradients = dict[str, Tensor | None]


def observe(network: ModelCase) -> Iterator[Pass]:
    """Compare the gradients of one training step with and without checkpointing."""
    if network.model.checkpoint is None:
        return
    plain, kept = _train(network, network.build())
    try:
        switched, fewer = _train(network, _switch_on(network))
    except SubjectError as fault:
        why = describe_error(fault.__cause__ or fault)
        yield network.make_event("checkpointing fails", measured=1.0, detail=why)
        return
    yield network.make_event("saved", measured=float(fewer), reference=float(kept))
    gaps = _gaps(plain, switched)
    if any(gap > _NOISE for gap in gaps.values()):
        again, _ = _train(network, network.build())
        if any(gap > _NOISE for gap in _gaps(plain, again).values()):
            raise Unjudged("two steps from the same seed differ by themselves")
    for name, gap in gaps.items():
        yield network.make_event("checkpointed", place=name, measured=gap)


def _switch_on(network: ModelCase) -> nn.Module:
    """Build the model and switch checkpointing on."""
    module = network.build()
    assert network.model.checkpoint is not None
    returned = call_guarded(network.model.checkpoint, module)
    return returned if isinstance(returned, nn.Module) else module


def _train(network: ModelCase, module: nn.Module) -> tuple[Gradients, int]:
    """Go forward and back once; return the gradients, and how many tensors were kept for it."""
    inputs, kept = network.draw(), list[int]()

    def keep(tensor: Tensor) -> Tensor:
        """Count a tensor that is kept for backward."""
        kept.append(tensor.numel())
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        objective = network.objective(network.call(module.train(), inputs), inputs)
        count = len(kept)
        call_guarded(objective.backward)
    return {name: p.grad for name, p in module.named_parameters()}, count


def _gaps(plain: Gradients, other: Gradients) -> dict[str, float]:
    """Return for each parameter how far two gradients are apart; wrappers may rename it."""
    largest = max((float(g.norm()) for g in plain.values() if g is not None), default=0.0)
    pairs = zip(plain.items(), other.values(), strict=False)
    return {name: _gap(one, two, _TINY * largest) for (name, one), two in pairs}


def _gap(one: Tensor | None, two: Tensor | None, least: float) -> float:
    """Return how far two gradients are apart, relative to the first one's norm."""
    if one is None or two is None:
        absent = (one is None, two is None)
        there = one if two is None else two
        return 0.0 if all(absent) or there is None or not bool(there.any()) else inf
    gap, size = float((one - two).norm()), max(float(one.norm()), least)
    return gap / size if size else gap
