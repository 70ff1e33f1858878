"""The same step in another way: without checkpoints, with other noise, at another scale."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import checkpoint

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.graph_cuts import (
    held_by,
    on_bare_gradients,
    on_detach,
)
from trainguard.observe.loop.counterfactual.labels import differ
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.scaling import Scaling
from trainguard.observe.loop.window import gradient_of
from trainguard.observe.tools.patches import tell_before

_LEAST_DROPPED = 32.0  # elements that dropout strikes on the average: it then never spares all
_FIRST_SCALE = 2.0**16  # torch's own
_QUARTER = 0.25  # a power of two is exact, and a smaller scale does not overflow
_SUBNORMAL = 0.05  # of the norm: what is lost of small numbers in 16 bits at a quarter of a scale
_NODES = 2**14  # of a graph that are looked at
_GENERATOR = "_checkpoint_without_reentrant_generator"


class AsItIs(Question):
    """
    Nothing is edited; the step tells what in it can be asked about.

    compiled: what the process had compiled before the run: earlier trainings did.
    """

    def __init__(self, compiled: int = 0) -> None:
        self._compiled = compiled

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks for checkpoints, dropout, and what has no graph."""
        witness = Witness(call.recorder, way_out, call.module)
        compiles = self._compiled != count_compiled() or _is_compiled(call.module)
        witness.noticed = _Compiled() if compiles else Noticed(held_by(call.recorder), call.module)
        return witness


class CheckpointsBypassed(Question):
    """
    What is checkpointed keeps its activations instead of computing them again.

    measured: how many parameters get another gradient; reference: how many there are; smallest: of
    how many there is none with the checkpoints.
    """

    name = "checkpoints bypassed"
    asks = 1

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether something is checkpointed, the step as it is has told."""
        return "activations are kept"

    def applies(self, plain: Report) -> bool:
        """Say whether something is checkpointed."""
        return bool(plain["checkpoints"])

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let checkpoints call what they are given."""
        checkpoint.CheckpointFunction.apply = _call  # type: ignore[method-assign]
        setattr(checkpoint, _GENERATOR, _keep)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count the gradients that are others."""
        if plain["streams"] != edited["streams"] and plain["loss"] != edited["loss"]:
            return Contrast(void="the edit changed which random numbers the loss is made of")
        if not differ(plain, edited):
            return Contrast(0.0, float(len(plain["norms"])))
        pairs = list(zip(plain["norms"], edited["norms"], strict=True))
        share = 10.0 * plain["rounding"] * max(edited["norms"], default=0.0)
        changed = sum(abs(a - b) > share for a, b in pairs)
        lost = sum(a == 0.0 < b for a, b in pairs)
        words = f"{lost} of {len(pairs)} parameters get a gradient only without checkpoints"
        return Contrast(float(changed), float(len(pairs)), smallest=words if lost else "")


class OtherNoise(Question):
    """
    The random numbers of torch are others.

    measured: how many of loss and gradients changed by a bit; reference: of how many; numbers:
    whether dropout strikes. It may be passed by instead: a layer of the model that is not called,
    though the module that has it is.
    """

    name = "other noise"
    asks = 2

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether dropout strikes, the step as it is has told."""
        return "another seed"

    def applies(self, plain: Report) -> bool:
        """Say whether dropout strikes enough to make a difference, or is passed by."""
        idle = plain["passed_by"] and not plain["drawn"]
        return bool(plain["dropped"] >= _LEAST_DROPPED or idle)

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Seed torch's generator anew."""
        torch.default_generator.manual_seed(torch.default_generator.initial_seed() ^ 0x5EED)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count what changed."""
        kinds = ("loss", "gradients")
        changed = sum(plain[kind] != edited[kind] for kind in kinds)
        struck = plain["dropped"] >= _LEAST_DROPPED
        return Contrast(float(changed), float(len(kinds)), (float(struck),))

    def is_settled(self, contrast: Contrast) -> bool:
        """One change is enough."""
        return contrast.measured > 0


class LossesScaled(Question):
    """
    What losses are scaled by, for gradients in 16 bits, is a quarter of what it is.

    measured: by what share of their norm the gradients that the step is made with are others;
    reference: what may be lost in 16 bits; numbers: both norms, and whether all scalers were
    enabled. One that torch has disabled, since its device is not there, is enabled on the CPU.
    """

    name = "losses scaled"
    asks = 2
    needs_follow_ups = True

    def __init__(self, share: float = 1.0) -> None:
        self._share, self._whole = share, Report()

    def fits(self, call: ModuleCall) -> str:
        """Ask where there is a gradient scaler that is meant to be enabled."""
        return "a quarter of the scale" if call.recorder.watcher(Scaling).meant else ""

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Set the scale of all scalers, and forget gradients of earlier ones."""
        for scaler in call.recorder.watcher(Scaling).meant:
            _rescale(scaler, self._share)
        for window in call.recorder.windows:
            for parameter in window.parameters:
                gradient = gradient_of(parameter)
                if gradient is not None:
                    gradient.detach().zero_()

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks at the gradients of the step once they are unscaled."""
        enabled = all(scaler.is_enabled() for scaler in call.recorder.watcher(Scaling).meant)
        return _StepWitness(call, way_out, enabled)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Hold the norms of both scales against each other, once both are known."""
        self._whole = edited
        return Contrast()

    def follow_ups(self, contrast: Contrast) -> "list[LossesScaled]":
        """Ask for a quarter of the scale."""
        return [LossesScaled(_QUARTER)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Compare the gradients of both."""
        norms = self._whole["norms"], edited["norms"]
        both = math.hypot(*norms[0]), math.hypot(*norms[1])
        if not 0 < max(both) < math.inf or self._whole["scaled"] != edited["scaled"]:
            return Contrast(void="the gradients are zero, or not finite")
        apart = math.hypot(*(a - b for a, b in zip(*norms, strict=True))) / max(both)
        return Contrast(apart, _SUBNORMAL, (*both, float(edited["enabled"])))

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is for all."""
        return True


class _StepWitness(Witness):
    """Reports the gradients that an optimizer is about to step with, and how often one scaled."""

    def __init__(self, call: ModuleCall, way_out: Exit, enabled: bool) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._enabled, self._scaled = enabled, 0

    def take_over(self) -> None:
        """Wait for the first step."""
        super().take_over()
        register_optimizer_step_pre_hook(self._on_step)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Count losses that are scaled."""
        self._scaled += float(self.recorder.scaling.of(loss)) != 1.0

    def after_backward(self, loss: torch.Tensor) -> None:
        """Go on to the step."""

    def _on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> NoReturn:
        """Report, unless the optimizer unscales in its own kernel."""
        if getattr(optimizer, "grad_scale", None) is not None:
            self.way_out.void("the optimizer unscales in its own kernel")
        held = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [gradient_of(parameter) for parameter in held]
        norms = [0.0 if g is None else float(torch.linalg.vector_norm(g)) for g in gradients]
        self.way_out.report(norms=norms, scaled=self._scaled, enabled=self._enabled)


def _rescale(scaler: Any, share: float) -> None:
    """Give a scaler a share of its scale, or of torch's own where it was disabled."""
    if not scaler.is_enabled():
        torch.amp.GradScaler.__init__(scaler, "cpu", init_scale=share * _FIRST_SCALE)
    elif scaler._scale is None:  # noqa: SLF001 update() may not be called here
        scaler._init_scale *= share  # noqa: SLF001
    else:
        scaler._scale.mul_(share)  # noqa: SLF001


class _Compiled:
    """Stands for what is counted in a program that compiles: nothing."""

    compiled = True

    def meet(self, loss: torch.Tensor) -> None:
        """Count nothing."""


class Noticed:
    """
    Counts, in a child that goes on with a step as it is, what can be asked about.

    checkpoints, dropped: calls of checkpoints, and elements that dropout strikes, of what is made
    by a parameter that the loss is made by, too: another model may have its turn in between. cuts:
    how often one line has detached something. bare: gradients that were asked for without a graph.
    casts: whether autocast was enabled. passed_by: whether a dropout of the model is not called.
    """

    compiled = casts = False

    def __init__(self, held: set[int], module: nn.Module) -> None:
        self._module, self._called = module, set[int]()
        self._parts, self._is_within = {id(part) for part in module.modules()}, False
        register_module_forward_pre_hook(self._see_call)
        self.checkpoints, self.dropped, self.bare = 0, 0.0, 0
        self._struck: list[tuple[Any, float]] = []
        self._cuts: Counter[str] = Counter()
        on_detach(self._count_cut)
        on_bare_gradients(held, self._count_bare)
        apply, generator = checkpoint.CheckpointFunction.apply, getattr(checkpoint, _GENERATOR)
        checkpoint.CheckpointFunction.apply = tell_before(self._count_checkpoint)(apply)  # type: ignore[method-assign]
        setattr(checkpoint, _GENERATOR, tell_before(self._count_checkpoint)(generator))
        functional.dropout = tell_before(self._add_up)(functional.dropout)
        on_autocast(self._see_cast)

    @property
    def passed_by(self) -> bool:
        """Whether a dropout is not called in a module that is."""
        called = [part for part in self._module.modules() if id(part) in self._called]
        layers = [layer for part in called for layer in part.children() if _drops(layer)]
        return any(id(layer) not in self._called for layer in layers)

    @property
    def cuts(self) -> int:
        """How often one line has detached something."""
        return max(self._cuts.values(), default=0)

    def _count_cut(self, tensor: torch.Tensor, line: str) -> torch.Tensor:
        """Count, and detach."""
        self._cuts[line] += 1
        return torch._C.TensorBase.detach(tensor)  # noqa: SLF001

    def _see_call(self, part: nn.Module, _: Any) -> None:
        """Remember that a part of the model is called, or one of another model."""
        self._called.add(id(part))
        self._is_within = id(part) in self._parts

    def _see_cast(self, context: Any) -> None:
        """See whether a context enables autocast."""
        self.casts |= context.device == "cpu" and context._enabled  # noqa: SLF001 no public name

    def _count_bare(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Count, and compute the gradients."""
        self.bare += 1
        return original(*args, **kwargs)

    def _count_checkpoint(self, *_: Any, **__: Any) -> None:
        """Count the calls of what checkpoints."""
        self.checkpoints += 1

    def _add_up(self, *args: Any, **kwargs: Any) -> None:
        """Add up how many elements that are not zero anyhow a dropout strikes on the average."""
        given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
        p = given.get("p", 0.5)
        if given.get("training", True) and 0 < p < 1 and torch.is_grad_enabled():
            hidden = given["input"]
            share = p * int(torch.count_nonzero(hidden.detach()))
            if hidden.grad_fn is not None:
                self._struck.append((hidden.grad_fn, share))
            elif self._is_within:
                self.dropped += share

    def meet(self, loss: torch.Tensor) -> None:
        """Count what was struck on the way to this loss, or beside it."""
        if not self._struck or loss.grad_fn is None:
            return
        nodes = set(autograd_graph.below(loss.grad_fn, _NODES))
        own = autograd_graph.leaves_of(nodes)
        for node, share in self._struck:
            on_the_way = node in nodes  # most often: then its own graph need not be walked
            if on_the_way or own & autograd_graph.leaves_of(autograd_graph.below(node, _NODES)):
                self.dropped += share
        self._struck.clear()


def _drops(module: nn.Module) -> bool:
    """Say whether a module is a dropout that is awake."""
    return isinstance(module, _DropoutNd) and module.training and module.p > 0


def on_autocast(act: Callable[[Any], None]) -> None:
    """Do something with each autocast that is about to be entered, in a child."""
    kind: Any = torch.amp.autocast_mode.autocast
    kind.__enter__ = tell_before(act)(kind.__enter__)


def count_compiled() -> int:
    """Return how many frames were compiled by now: they would be again for what counts calls."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters["frames"].values())


def _is_compiled(module: nn.Module) -> bool:
    """Say whether a module was compiled, perhaps before the run: by the wrapper, or in place."""
    parts = module.modules()
    return any("_orig_mod" in vars(part)["_modules"] or part._compiled_call_impl for part in parts)  # noqa: SLF001


def _call(function: Callable[..., Any], _: bool, *args: Any) -> Any:
    """Call what would be checkpointed."""
    return function(*args)


def _keep(*_: Any, **__: Any) -> Iterator[None]:
    """Stand for the generator around a checkpoint that saves nothing."""
    yield
