"""
A ModelCase is a declared model at one structure: build it, draw inputs, call it, name its outputs.

Everything that runs the team's code goes through here, so that what it raises is the subject's
own fault, told in one sentence. Every build is a fresh module, and every call is seeded.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor, nn
from torch.nn.parameter import is_lazy

from trainguard.core.errors import SubjectError, is_ours, passes_on
from trainguard.events.trace import Pass
from trainguard.observe.model.outputs import (
    Outputs,
    check_shapes,
    check_values,
    describe,
    flatten,
    tensors_of,
)
from trainguard.observe.tools.isolation import seed_everything
from trainguard.observe.tools.points import Box, uniform
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.model import Model
from trainguard.subjects.model_inputs import forward_inputs, forward_parameters, refusal

Inputs = dict[str, Any]

# Whether a factory hands out one module at each call, and copies of losses that are modules:
# what belongs to the team must not be changed.
_KEEPS: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()
_LOSSES: WeakKeyDictionary[Model, nn.Module] = WeakKeyDictionary()


@dataclass(frozen=True)
class ModelCase:
    """
    One declared model at one structure, on one device.

    case: the number of the structure. dtype: of parameters and inputs, of full precision.
    precision: the dtype that is judged, which may be a lower one; see `call(autocast=...)`.
    """

    model: Model
    structure: Structure
    case: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    precision: str = "float32"
    seed: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the named dimensions."""
        return dict(self.structure.sizes)

    @property
    def is_seeded(self) -> bool:
        """Whether another seed gives another model: a factory, and not one given module."""
        return not self.model.is_module

    def with_sizes(self, **sizes: int) -> "ModelCase":
        """Return the same network for inputs of other sizes; its modules are built alike."""
        return replace(self, structure=self.structure.with_sizes(**sizes))

    def build(self, seed: int = 0) -> nn.Module:
        """
        Build the model from a seed, or copy the one given; in training mode, on the device.

        Raises SubjectError for what is no model: no module, no parameters, no values in them.
        """
        module: nn.Module = self._copy() if self.model.is_module else self._call_factory(seed)
        module = getattr(module, "_orig_mod", module)  # of a compiled one
        check_values(module)
        module = call_guarded(module.to, self.device)
        if self.dtype is not torch.float32:
            module = call_guarded(module.to, self.dtype)
        module.train()
        module.zero_grad(set_to_none=True)
        _refuse(refusal(self.model, module))
        if any(is_lazy(tensor) for tensor in tensors_of(module).values()):
            self._materialise(module, self.seed + seed)
        check_shapes(module)
        return module

    def draw(self, seed: int = 0) -> Inputs:
        """Draw one batch of all declared inputs, those of the loss included."""
        box = Box(self.model.tensors, self.structure.sizes, self.dtype, self.device)
        generator = Generator().manual_seed(self.seed + 1009 * self.case + seed)
        drawn = {name: tensor[0] for name, tensor in uniform(box, 1, generator).items()}
        every = {**drawn, **self.structure.arguments}
        return {name: every[name] for name in self.model.inputs}

    def forward_names(self, module: nn.Module) -> set[str]:
        """Return the names of the inputs that `forward` is called with."""
        return forward_inputs(module, self.model.loss, self.model.inputs)

    def call(
        self, module: nn.Module, inputs: Inputs, *, seed: int = 0, autocast: str = ""
    ) -> Outputs:
        """
        Call the module, seeded, and return its floating-point outputs by name.

        The mode and `torch.no_grad` are the caller's. Raises SubjectError where it raises.
        """
        try:
            returned = self._run(module, inputs, seed, autocast)
        except SubjectError as fault:
            if torch.is_grad_enabled() or not isinstance(fault.__cause__, RuntimeError):
                raise
            # Its output may itself be a gradient, as a force is of an energy: then this works.
            with torch.enable_grad(), suppress(SubjectError):
                returned = self._run(module, inputs, seed, autocast)
                return Outputs(returned, {n: t.detach() for n, t in flatten(returned).items()})
            raise
        return Outputs(returned, flatten(returned))

    def _run(self, module: nn.Module, inputs: Inputs, seed: int, autocast: str) -> Any:
        """Call the module, seeded, and return what it returns."""
        seed_everything(seed)
        kind = torch.device(self.device).type
        with torch.autocast(kind, getattr(torch, autocast)) if autocast else nullcontext():
            return self._call(module, inputs)

    def objective(self, outputs: Outputs, inputs: Inputs) -> Tensor:
        """
        Return the number that is minimised.

        It is what `loss` returns; where none is declared, the model's own loss (an output called
        `loss`), and otherwise a fixed random projection of every output, the same in each call.
        """
        if self.model.loss is not None:
            return self._call_loss(outputs, inputs)
        own = outputs.own_loss
        return outputs.projection() if own is None else own

    def loss(self, outputs: Outputs, inputs: Inputs) -> Tensor | None:
        """Return the loss itself, declared or the model's own; None where only a projection is."""
        if self.model.loss is not None:
            return self._call_loss(outputs, inputs)
        return outputs.own_loss if outputs.own_loss is not None else outputs.only_number

    def make_event(self, quantity: str, **columns: Any) -> Pass:
        """Make an event of this case and its sizes."""
        sizes = tuple(sorted(self.structure.sizes.items()))
        return Pass(quantity=quantity, case=self.case, sizes=sizes, **columns)

    def _call_factory(self, seed: int) -> nn.Module:
        """Call the factory, seeded; hand it the seed where it takes one."""
        factory = self.model.model
        given = {**self.model.arguments, **self.structure.hyperparameters}
        if "seed" not in given and "seed" in _parameter_names(factory):
            given["seed"] = self.seed + seed
        seed_everything(self.seed + seed)
        made = call_guarded(factory, **given)
        if not isinstance(made, nn.Module):
            raise SubjectError(
                f"its factory returned {describe(made)}, which is no nn.Module",
                "return the module itself; what it is called with goes into the declaration",
            )
        if self.model not in _KEEPS:
            _KEEPS[self.model] = call_guarded(factory, **given) is made
        return self._copy(made) if _KEEPS[self.model] else made

    def _copy(self, module: nn.Module | None = None) -> nn.Module:
        """Copy a given module, so that it stays as it was."""
        try:
            return copy.deepcopy(self.model.model if module is None else module)
        except Exception as error:
            raise SubjectError(
                f"it cannot be copied: {describe_error(error)}",
                "declare a function that builds it, so that it need not be copied",
            ) from error

    def _materialise(self, module: nn.Module, seed: int) -> None:
        """Call a module with lazy parameters once, as its own training would have to."""
        module.eval()
        self.call(module, self.draw(), seed=seed)
        module.train()

    def _call(self, module: nn.Module, inputs: Inputs) -> Any:
        """Call the module by keyword, or in order where `forward` takes no keywords."""
        given = self.forward_names(module)
        accepted = forward_parameters(module) or []
        by_name = {name: value for name, value in inputs.items() if name in given}
        if given:
            ordered = [p.name for p in accepted if p.kind is p.POSITIONAL_ONLY and p.name in given]
            args = [by_name.pop(name) for name in ordered]
            return call_guarded(module, *args, **by_name)
        return call_guarded(module, *self._in_order(inputs))

    def _in_order(self, inputs: Inputs) -> list[Any]:
        """Return the inputs that the loss does not take, in order of declaration."""
        of_loss = set() if self.model.loss is None else _names_beside_output(self.model.loss)
        return [value for name, value in inputs.items() if name not in of_loss]

    def _loss(self) -> Callable[..., Any]:
        """Return the declared loss; of one that is a module a copy, which calls may change."""
        loss = self.model.loss
        assert loss is not None
        if not isinstance(loss, nn.Module):
            return loss
        if self.model not in _LOSSES:
            _LOSSES[self.model] = self._copy(loss)
        return _LOSSES[self.model].to(self.device)

    def _call_loss(self, outputs: Outputs, inputs: Inputs) -> Tensor:
        """Call the declared loss with the output and those inputs that it takes."""
        loss = self._loss()
        names = _names_beside_output(loss)
        given = {name: value for name, value in inputs.items() if name in names}
        returned = call_guarded(loss, outputs.returned, **given)
        if isinstance(returned, Mapping) and "loss" in returned:
            returned = returned["loss"]
        if not isinstance(returned, Tensor) or not returned.is_floating_point():
            raise SubjectError(
                f"its loss returned {describe(returned)}, not a floating-point tensor",
                "return the loss as a tensor",
            )
        return returned if returned.ndim == 0 else returned.mean()


@passes_on
def call_guarded(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """Call the team's code; what it raises is the subject's fault and keeps its traceback."""
    try:
        return function(*args, **keywords)
    except SubjectError:
        raise
    except (Exception, SystemExit) as error:
        if is_ours(error):
            raise
        told = f"it raised {describe_error(error)}"
        raise SubjectError(told, "the traceback below is the model's own") from error


def describe_error(error: BaseException) -> str:
    """Write an exception as its kind and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def backward(objective: Tensor) -> None:
    """Go back from a number; what the model's own backward code raises is the subject's fault."""
    try:
        call_guarded(objective.backward)
    except SubjectError as fault:
        if fault.__cause__ is None:
            raise
        told = f"its backward pass raised {describe_error(fault.__cause__)}"
        raise SubjectError(told, fault.remedy) from fault.__cause__


def hookable(module: nn.Module) -> dict[str, nn.Module]:
    """Return all modules in a model that take forward hooks, by name; scripted ones do not."""
    return {
        name: part
        for name, part in module.named_modules()
        if not isinstance(part, torch.jit.ScriptModule)
    }


def _refuse(wrong: tuple[str, str] | None) -> None:
    """Raise where the declared inputs are not those that the built module takes."""
    if wrong is not None:
        raise SubjectError(wrong[0], wrong[1].rstrip("."))


def _names_beside_output(loss: Callable[..., Any]) -> set[str]:
    """Return the names that a loss takes beside its first argument, which is the model's output."""
    return _parameter_names(loss) - set(_ordered_names(loss)[:1])


def _parameter_names(function: Callable[..., Any]) -> set[str]:
    """Return the names that a callable takes, as far as can be known."""
    return set(_ordered_names(function))


def _ordered_names(function: Callable[..., Any]) -> list[str]:
    """Return the names that a callable takes, in order, as far as can be known."""
    target = function if inspect.isclass(function) else getattr(function, "forward", function)
    try:
        accepted = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in accepted if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
