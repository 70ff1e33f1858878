"""The training step of a declared model, or the one call of a declared loss, at given sizes."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainguard.core.settings import Settings
from trainguard.events.base import Plain
from trainguard.observe.loss.call import LossCase
from trainguard.observe.memory.fake import active_mode, without_values
from trainguard.observe.memory.training import Training
from trainguard.observe.model import cases
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.outputs import Outputs
from trainguard.observe.tools.points import Box, uniform
from trainguard.observe.tools.structure import Structure, draw
from trainguard.subjects.budget import Budget
from trainguard.subjects.loss import LOW_PRECISION, Loss
from trainguard.subjects.model import Model

Sizes = tuple[tuple[str, Plain], ...]


class _FakeModelCase(ModelCase):
    """A declared model whose given module is copied without its values, on fake tensors."""

    def _copy(self, module: nn.Module | None = None) -> nn.Module:
        """Copy a given module, so that it stays as it was."""
        mode = active_mode()
        if mode is None:
            return super()._copy(module)
        return without_values(self.model.model if module is None else module, mode)


@dataclass(frozen=True)
class DeclaredStep:
    """
    What a step is made of, and at which sizes.

    subject: a model or a loss. budget: what says how it is trained. at: sizes of dimensions and
    arguments of the factory, on top of those of the declaration. checkpointed: whether the model's
    `checkpoint` is applied.
    """

    subject: Model | Loss
    budget: Budget
    device: str
    dtype: str
    settings: Settings
    at: Mapping[str, Any]
    checkpointed: bool = False

    def with_sizes(self, **at: Any) -> "DeclaredStep":
        """Return the same step at other sizes."""
        return replace(self, at={**self.at, **at})

    @property
    def structure(self) -> Structure:
        """The largest declared sizes, with those of the budget in their place."""
        subject, seed = self.subject, self.settings.seed
        if isinstance(subject, Model):
            drawn = cases.draw(subject, 1, seed)[0]
        else:
            drawn = draw(subject, 1, seed)[0].with_sizes(**_largest(subject))
        sizes = {name: size for name, size in self.at.items() if name in drawn.sizes}
        arguments = {name: value for name, value in self.at.items() if name not in drawn.sizes}
        return replace(
            drawn.with_sizes(**sizes), hyperparameters={**drawn.hyperparameters, **arguments}
        )

    @property
    def sizes(self) -> Sizes:
        """The sizes and arguments, for the report."""
        structure = self.structure
        arguments = {
            name: value if isinstance(value, int | float | str) else repr(value)
            for name, value in structure.hyperparameters.items()
        }
        return tuple(sorted({**structure.sizes, **arguments}.items()))

    def training(self) -> Training:
        """Return how a step of it is made."""
        if isinstance(self.subject, Model):
            return self._of_model(self.subject)
        return self._of_loss(self.subject)

    def _of_model(self, model: Model) -> Training:
        """Return the training step of a model."""
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        network = _FakeModelCase(
            model, self.structure, 0, self.device, dtype, self.dtype, self.settings.seed
        )
        return Training(
            build=lambda: self._build(model, network),
            feed=network.draw,
            loss=lambda module, inputs: self._loss(network, module, inputs),
            optimizer=self.budget.using or _adamw,
            average=self.budget.averaged,
            foreach=self.budget.device == "cuda",
        )

    def _build(self, model: Model, network: ModelCase) -> nn.Module:
        """Build the model, with activation checkpointing where that is asked for."""
        module = network.build()
        if not self.checkpointed or model.checkpoint is None:
            return module
        wrapped = model.checkpoint(module)
        return wrapped if isinstance(wrapped, nn.Module) else module

    def _loss(self, network: ModelCase, module: nn.Module, inputs: Any) -> tuple[Tensor, Outputs]:
        """Call the model and return what is minimised, and the outputs that a loop still holds."""
        low = self.dtype in LOW_PRECISION
        kind = torch.device(self.device).type
        autocast = torch.autocast(kind, getattr(torch, self.dtype)) if low else None
        with autocast or nullcontext():
            outputs = network.call(module, inputs)
            loss = network.loss(outputs, inputs)
            return _sum_outputs(outputs) if loss is None else loss, outputs

    def _of_loss(self, loss: Loss) -> Training:
        """Return one call of a loss, forward and backward; nothing is stepped."""
        structure, dtype = self.structure, getattr(torch, self.dtype)
        box = Box(loss.tensors, structure.sizes, dtype, self.device)
        component = LossCase(loss, structure, self.device, dtype)

        def feed() -> dict[str, Tensor]:
            """Draw the inputs of one call, those with a gradient as leaves."""
            generator = torch.Generator().manual_seed(self.settings.seed)
            drawn = {name: t[0] for name, t in uniform(box, 1, generator).items()}
            for name, domain in loss.tensors.items():
                drawn[name].requires_grad_(domain.grad)
            return drawn

        def call(_: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
            """Return the loss of the drawn inputs."""
            return component.total(inputs).sum(), None

        return Training(nn.Module, feed, call, optimizer=None, foreach=False)


def _sum_outputs(outputs: Outputs) -> Tensor:
    """Return the cheapest number that goes back to every output, where no loss is declared."""
    return torch.stack([t.float().sum() for t in outputs.tensors.values()]).sum()


def _largest(loss: Loss) -> dict[str, int]:
    """Return the largest declared size of every dimension of a loss."""
    return {name: size if isinstance(size, int) else size[1] for name, size in loss.sizes.items()}


def _adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Make the optimizer that is most often meant where none is named."""
    return torch.optim.AdamW(parameters)
