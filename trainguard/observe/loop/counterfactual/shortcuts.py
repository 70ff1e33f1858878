"""The same step without its shortcuts: autocast off, torch.compile off, fused and foreach off."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)
from trainguard.observe.loop.counterfactual.variants import on_autocast
from trainguard.observe.loop.counterfactual.witness import Numbers, Witness, read_streams_at, sketch

_TIMES = 8.0  # what rounding to 16 bits does to a gradient: what else is wrong does more than that
_FAR = {"autocast off": 0.1, "compile off": 0.05}  # of a gradient's norm; the loss has less noise
_FUSED = ("fused", "foreach")
_ULPS = 8.0  # of a parameter: fused kernels round less often
_SAME = 1e-3  # of what a parameter moves by
_NO_PARTS = "the gradients are zero, not finite, or of other parameters"


class AutocastOff(Question):
    """
    What is made under autocast is made in the model's own dtypes; random numbers stay.

    measured: how far the gradients are apart, of the larger norm; reference: what may be, which is
    eight times what rounding parameters and inputs to 16 bits does; numbers: how far the losses are
    apart, and of how many parameters there is a gradient only without, of how many. smallest: the
    same in words.
    """

    name = "autocast off"
    asks = 2
    needs_follow_ups = True
    wanted = "casts"  # what the step as it is has to tell

    def __init__(self, rounds: bool = False) -> None:
        self._rounds = rounds  # whether parameters and inputs are rounded besides
        self._plain, self._edited = Report(), Report()

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether it is made under autocast, the step as it is has told."""
        return "the same dtypes everywhere"

    def applies(self, plain: Report) -> bool:
        """Say whether the step as it is has it."""
        return bool(plain[self.wanted])

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Leave the shortcut out, and round what is to be rounded."""
        self.leave_out()
        if self._rounds:
            with torch.no_grad():
                for tensor in (*call.module.parameters(), *filter(is_editable, call.tensors())):
                    if tensor.dtype == torch.float32:
                        tensor.copy_(tensor.bfloat16())

    def leave_out(self) -> None:
        """Let nothing enable autocast any more."""
        torch.set_autocast_enabled("cpu", False)
        on_autocast(_disable)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that reports the gradients too."""
        witness = super().witness(call, way_out)
        witness.sketches = True
        return witness

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say how far the gradients are apart, and look closer where it is far."""
        if plain["streams"] != edited["streams"]:
            return Contrast(void="the edit changed how many random numbers are drawn")
        apart = distance(plain["sketch"], edited["sketch"])
        if math.isnan(apart):
            return Contrast(void=_NO_PARTS)
        self._plain, self._edited = plain, edited
        pairs = list(zip(plain["norms"], edited["norms"], strict=True))
        lost, largest = sum(a == 0 < b for a, b in pairs), max(map(abs, _losses(plain, edited)))
        losses = abs(plain["loss"] - edited["loss"]) / largest if largest else 0.0
        words = f"{lost} of {len(pairs)} parameters get a gradient only without it" if lost else ""
        numbers = (losses, float(lost), float(len(pairs)))
        return Contrast(apart, _FAR[self.name], numbers, smallest=words)

    def follow_ups(self, contrast: Contrast) -> "list[Question]":
        """Ask what rounding alone does, where the gradients are far apart."""
        far = not contrast.void and contrast.measured > contrast.reference
        return [type(self)(rounds=True)] if far else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Allow several times what rounding does."""
        noise = distance(edited["sketch"], self._edited["sketch"])
        most = max(contrast.reference, _TIMES * noise) if not math.isnan(noise) else math.inf
        return contrast._replace(reference=most)

    def is_settled(self, contrast: Contrast) -> bool:
        """Once they agree, they agree."""
        return contrast.measured <= contrast.reference


class CompileOff(AutocastOff):
    """What is compiled runs as it is written; the same numbers as for autocast."""

    name = "compile off"
    wanted = "compiled"

    def fits(self, call: ModuleCall) -> str:
        """Ask where torch can run what is compiled without its compiler."""
        return "as it is written" if hasattr(torch.compiler, "set_stance") else ""

    def leave_out(self) -> None:
        """Let torch run everything as it is written."""
        torch.compiler.set_stance("force_eager")

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Compare steps that draw no numbers, which a compiler draws otherwise."""
        if plain["drawn"] or edited["drawn"]:
            return Contrast(void="random numbers are drawn")
        return super().compare(plain, edited)


class FusedOff(Question):
    """
    A step is made by an optimizer parameter by parameter, without `fused` and `foreach`.

    measured: of how many parameters' numbers another one becomes; reference: of how many.
    """

    name = "fused off"
    asks = 1
    needs_follow_ups = True

    def __init__(self, off: bool = False) -> None:
        self._off, self._whole = off, Report()

    def fits(self, call: ModuleCall) -> str:
        """Ask where an optimizer has one of them switched on."""
        held = (w.optimizer() for w in call.recorder.windows if w.optimizer is not None)
        return "parameter by parameter" if any(map(_is_fused, held)) else ""

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Switch it off."""
        for window in call.recorder.windows if self._off else ():
            optimizer = window.optimizer() if window.optimizer is not None else None
            for group in optimizer.param_groups if optimizer is not None else ():
                group.update({name: False for name in _FUSED if group.get(name)})

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks at parameters before and after a step."""
        stepping = [w.optimizer() for w in call.recorder.windows if w.optimizer is not None]
        held = {id(optimizer) for optimizer in stepping if _is_fused(optimizer) or self._off}
        return _UpdateWitness(call, way_out, held)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Hold the two updates against each other, once both are known."""
        self._whole = edited
        return Contrast(void="random numbers are drawn") if edited["draws"] else Contrast()

    def follow_ups(self, contrast: Contrast) -> "list[FusedOff]":
        """Ask for the step without."""
        return [] if contrast.void else [FusedOff(off=True)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Count the numbers that become others by more than rounding."""
        whole, single = self._whole, edited
        moved = single["after"] - single["before"]
        near = _SAME * np.abs(moved) + _ULPS * single["epsilon"] * np.abs(single["before"])
        if edited["draws"] or len(moved) != len(whole["after"]) or not np.isfinite(moved).all():
            return Contrast(void="random numbers are drawn, or parameters are not finite")
        others = ~(np.abs(whole["after"] - single["after"]) <= near)
        return Contrast(float(others.sum()), float(np.count_nonzero(moved)))

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is for all."""
        return True


class _UpdateWitness(Witness):
    """Reports some numbers of all parameters of an optimizer, before and after a step."""

    def __init__(self, call: ModuleCall, way_out: Exit, held: set[int]) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._chosen, self._before = held, dict[int, Numbers]()

    def take_over(self) -> None:
        """Wait for the first step."""
        super().take_over()
        register_optimizer_step_pre_hook(self._begin)
        register_optimizer_step_post_hook(self._end)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Go on to the step."""

    def _begin(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look before."""
        if id(optimizer) in self._chosen and id(optimizer) not in self._before:
            self._before[id(optimizer)] = sketch(_parameters_of(optimizer), keeps_norms=False)
            self._drawn = read_streams_at()

    def _end(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look after, and report."""
        if id(optimizer) not in self._before:
            return
        held = _parameters_of(optimizer)
        self.way_out.report(
            before=self._before[id(optimizer)],
            after=sketch(held, keeps_norms=False),
            epsilon=max(torch.finfo(p.dtype).eps for p in held),
            draws=self._drawn != read_streams_at(),
        )


def _disable(context: Any) -> None:
    """Let an autocast that is about to be entered enable nothing."""
    context._enabled = False  # noqa: SLF001 no public name leads there


def _is_fused(optimizer: torch.optim.Optimizer | None) -> bool:
    """Say whether one of the shortcuts is switched on."""
    groups = optimizer.param_groups if optimizer is not None else []
    return any(group.get(name) for group in groups for name in _FUSED)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters that it holds."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _losses(*reports: Report) -> Iterable[float]:
    """Return the losses of reports."""
    return [report["loss"] for report in reports]


def distance(one: Numbers, other: Numbers) -> float:
    """Return how far two gradients are apart, of the larger norm; nan where nobody can say."""
    if len(one) != len(other) or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.nan
    largest = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / largest if largest else math.nan
