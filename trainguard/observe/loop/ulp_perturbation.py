"""
A run that begins one unit in the last place elsewhere: its drift is what rounding amounts to.

The training is not edited. Parameters are moved when an optimizer is made for them, or when their
module is first called with gradients, and again where they were initialised after that.
"""

import torch
from torch import nn

SHARE = 0.5033  # of eps: for float32, a factor of 1 +- 6e-8


class UlpPerturbation:
    """
    Moves each trainable parameter once, before the first step, by a factor of 1 +- half an eps.

    seed: of the signs; the random streams of the training are left alone.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._sums: dict[int, float] = {}  # of what was moved, as it was left
        self._kept: list[torch.Tensor] = []  # so that no other tensor takes the id of one of them
        self._done = False

    def move_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Move what a new optimizer holds."""
        self._move([p for group in optimizer.param_groups for p in group["params"]])

    def move_module(self, module: nn.Module) -> None:
        """Move what a module holds that is about to be called to learn."""
        if not self._done and torch.is_grad_enabled():
            self._move(list(nn.Module.parameters(module)))

    def move_parameters(self, parameters: list[torch.Tensor]) -> None:
        """Move at last what steps by hand alone have moved; from here on, nothing is."""
        if not self._done and not self._sums:
            self._move(parameters)
        self._done = True
        self._kept = []

    @property
    def moved_count(self) -> int:
        """How many parameters were moved."""
        return len(self._sums)

    def _move(self, parameters: list[torch.Tensor]) -> None:
        """Move parameters that were not moved yet, or were given other values since."""
        if self._done:
            return
        for parameter in parameters:
            if not _movable(parameter) or _sum(parameter) == self._sums.get(id(parameter)):
                continue
            # On the CPU, so that one seed gives the same signs on any device.
            stream = torch.Generator().manual_seed(self.seed + 7919 * len(self._sums))
            signs = torch.randint(0, 2, parameter.shape, generator=stream) * 2 - 1
            share = SHARE * torch.finfo(parameter.dtype).eps
            factor = 1 + signs.to(parameter.device, torch.float64) * share
            # Through .data, so that no graph takes it for a change of what it has saved.
            moved = parameter.data.to(factor.dtype) * factor
            parameter.data.copy_(moved.to(parameter.dtype))
            self._sums[id(parameter)] = _sum(parameter)
            self._kept.append(parameter)


def _movable(parameter: torch.Tensor) -> bool:
    """Say whether a tensor is trained and holds plain floating-point numbers already."""
    if nn.parameter.is_lazy(parameter):
        return False
    return parameter.requires_grad and parameter.is_floating_point()


def _sum(parameter: torch.Tensor) -> float:
    """Return the sum of a tensor's elements, by which it is known again."""
    return float(parameter.data.double().sum())
