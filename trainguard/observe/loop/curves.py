"""Hold the curves of a run against their snapshots, and bless them where that is asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

import torch
from torch import nn

from trainguard.curves.curve import Curve, Unreadable, curves
from trainguard.curves.store import INVARIANT, Archive, Files
from trainguard.curves.tolerance import ENVELOPES, departs
from trainguard.events.base import Event
from trainguard.events.curve import ON_ACCELERATORS, Kept
from trainguard.events.trace import Trace
from trainguard.subjects.loop import Loop
from trainguard.subjects.subject import variable_of

SHARE = 0.5033  # of eps: for float32, a factor of 1 +- 6e-8
RERUNS = 5  # whose drift is measured when a curve is blessed


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


Again = Callable[[int, UlpPerturbation | None], Trace[Event]]


@dataclass
class CurveProbe:
    """
    The probe "curve" of one run.

    again: makes the whole run once more, from another seed or with its parameters nudged.
    """

    run: Loop
    trace: Trace[Event]
    archive: Archive
    again: Again
    moved: list[int] = field(default_factory=list)

    def compare(self) -> Trace[Event]:
        """Return one event for each curve: what it is now, and what is kept of it."""
        events = [event for column in self.run.curve for event in self._of(column)]
        return replace(self.trace, events=tuple(events))

    @cached_property
    def perturbed_traces(self) -> list[Trace[Event]]:
        """The runs that began one unit in the last place elsewhere."""
        made = []
        for rerun in range(RERUNS):
            nudge = UlpPerturbation(rerun + 1)
            made.append(self.again(0, nudge))
            self.moved.append(nudge.moved_count)
        return made

    @cached_property
    def seed_traces(self) -> list[Trace[Event]]:
        """The runs of the other seeds, where several are compared."""
        return [self.again(seed, None) for seed in range(1, self.run.seeds or 1)]

    def _of(self, column: str) -> Iterator[Kept]:
        """Yield what is kept of the curves of one column, which each optimizer has."""
        found = curves(self.trace, column)
        away = [curve for curve in found if column in ON_ACCELERATORS and _on_cpu(curve)]
        if not found or away:
            yield Kept(column=column)
            return
        others = [{c.column: c for c in curves(trace, column)} for trace in self.seed_traces]
        for curve in found:
            yield self._settle(_together(curve, [own.get(curve.column) for own in others]), column)

    def _settle(self, found: Curve, column: str) -> Kept:
        """Compare a curve with what is kept of it, and bless it where it does not fit."""
        common = f"{found.column.replace(' of ', '.')}-{found.conditions['device']}"
        own = f"{common}-torch{_minor(found)}"
        texts = {name: self.archive.read(name) for name in (own, common)}
        holding = next((name for name, text in texts.items() if self._fits(text, found)), None)
        name = holding or (own if texts[own] is not None else common)
        told = Kept(
            column=found.column,
            found=found.to_text(),
            kept=texts[name] or "",
            place=self.archive.place(name),
        )
        if holding is None and self.archive.blesses(texts[name] is None):
            return self._bless(told, found, column, own if _apart(texts[name], found) else name)
        self.archive.settle(name, told.found, "fits" if holding else "fails")
        return told

    def _bless(self, told: Kept, found: Curve, column: str, name: str) -> Kept:
        """Bless a curve under a name, unless something is wrong with it or with its run."""
        drifting = self._with_drift(found, column)
        refused = _unfit(drifting) or self.archive.objection(self.trace)
        if not refused and any(moved == 0 for moved in self.moved):
            refused = "none of its parameters could be moved to measure its drift"
        text = told.found if refused else drifting.to_text()
        self.archive.settle(name, text, "fails" if refused else "blessed")
        if refused:
            return replace(told, refused=refused)
        place = self.archive.place(name)
        return replace(told, kept=text, place=place, apart=told.kept if place != told.place else "")

    def _with_drift(self, found: Curve, column: str) -> Curve:
        """Return a curve with its measured drift; one of several seeds has their spread."""
        if len(found.runs) > 1 or not found.finite:
            return found
        others = [
            c for t in self.perturbed_traces for c in curves(t, column) if c.column == found.column
        ]
        return found.drifting(others)

    def _fits(self, text: str | None, found: Curve) -> bool:
        """Say whether a curve is in the band of a snapshot that can be read."""
        if text is None:
            return False
        envelopes = self.run.limits.get(INVARIANT, ENVELOPES)
        try:
            return departs(Curve.from_text(text), found, envelopes) is None
        except Unreadable:
            return False


def files_of(subject: Loop) -> Files:
    """Return the snapshots of a declared loop, as files."""
    return Files(Path(subject.file), f"{variable_of(subject) or subject.name}.{INVARIANT}")


def _together(curve: Curve, others: list[Curve | None]) -> Curve:
    """Return one curve of the runs of several seeds, at the steps that all of them have."""
    if not others:
        return curve
    every = [curve, *(other for other in others if other is not None)]
    steps = [step for step in curve.steps if all(step in own.rows for own in every)]
    runs = tuple(tuple(own.values[own.rows[step]] for step in steps) for own in every)
    conditions = {**curve.conditions, "seed": f"0 to {len(others)}"}
    return replace(curve, steps=tuple(steps), runs=runs, conditions=conditions)


def _unfit(curve: Curve) -> str:
    """Say why a curve cannot be blessed as it is, or nothing."""
    if not curve.finite:
        rows = zip(curve.steps, *curve.runs, strict=True)
        step = next(step for step, *values in rows if not all(map(isfinite, values)))
        return f"it is not finite at step {step}"
    if not all(map(isfinite, curve.drift)):
        return "it is finite by luck: begun one rounding elsewhere, it is not"
    if len(curve.runs) > 1 and len(set(curve.runs)) == 1:
        return "all seeds give the same curve: let the function take `seed`, or seed nothing itself"
    return ""


def _apart(text: str | None, found: Curve) -> bool:
    """Say whether a snapshot is one of another version of torch, which stays as it is."""
    try:
        return text is not None and _minor(Curve.from_text(text)) != _minor(found)
    except Unreadable:
        return False


def _minor(curve: Curve) -> str:
    """Return the version of torch that a curve was made with, its last part left out."""
    return ".".join(curve.conditions["torch"].split("+")[0].split(".")[:2])


def _on_cpu(curve: Curve) -> bool:
    """Say whether a curve is of a run without an accelerator."""
    return curve.conditions.get("device") == "cpu"
