"""Watches runs that go on from a file: whether the state of the optimizer goes on too."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller, user_frames, variables_of

_COUNTED = {"epoch", "epochs", "it", "iter", "iteration", "iterations", "round", "step", "steps"}
_LEAST = 2  # of them: a training of its own may well begin with 1
_FRAMES = 8  # that may hold the number that is counted on
_FILES, _WEIGHTS = 8, 64  # that are remembered, and matrices of each
_SAMPLED = 32  # elements that tell a matrix from others
_LATER = 4096  # steps in which a number that is counted is another one


class _Plan(NamedTuple):
    """The rate of an optimizer, as it was made, and how many parameters it has."""

    rate: float
    parameters: int


@dataclass(slots=True)
class _ReadFile:
    """
    A file with weights and a number that counts.

    weights: what tells its matrices from others. plans: those of the optimizers that are in it,
    too.
    """

    count: int
    weights: set[int]
    plans: list[_Plan]
    source: str


@dataclass(slots=True)
class _Resumed:
    """
    An optimizer that makes its first step from weights of a file, without a state.

    variables: names of numbers that were as in the file, with their values. in_file: whether the
    file has a state of it. stateful: whether it has one, once it has made a step. counts: whether
    such a number was counted on.
    """

    optimizer: "weakref.ref[Optimizer]"
    file: _ReadFile
    step: int
    variables: dict[str, int]
    in_file: bool
    stateful: bool = False
    counts: str = ""


class ResumedOptimizers(Watcher):
    """
    The Probe event "resumed optimizer": one that begins anew in a training that counts on.

    measured: the number that the file counts, and reference: whether the file has the state of such
    an optimizer; label: the name of the number in the script, and the optimizer's class.
    """

    makes = ("Probe:resumed optimizer",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._files: list[_ReadFile] = []
        self._resumed: list[_Resumed] = []
        self._plans: list[_Plan] = []  # of the optimizers that have made a step

    def install(self, patches: Patches) -> None:
        """Listen to files that are read."""
        patches.replace(torch, "load", tell_after(self._see_loaded))

    def before_step(self, window: Window) -> Columns:
        """See whether an optimizer begins with weights of a file, and what counts on after that."""
        optimizer = window.optimizer() if window.optimizer is not None else None
        if optimizer is None or window.index & (window.index - 1) or window.index > _LATER:
            return {}
        with suppress(Exception):  # whatever somebody's optimizers hold
            if window.index:
                self._go_on(optimizer)
            elif not optimizer.state:
                self._begin(optimizer)
            if not window.index and (plan := _plan_of(optimizer.param_groups)) is not None:
                self._plans.append(plan)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for one in self._resumed:
            if one.stateful and one.counts:
                yield make_probe(
                    "resumed optimizer",
                    one.file.count,
                    one.in_file,
                    step=one.step,
                    label=one.counts,
                    source=one.file.source,
                )

    @shielded
    def _see_loaded(self, found: Any, /, *_: Any, **__: Any) -> None:
        """Take down the weights in what a `torch.load` has read, beside a number that counts."""
        if not self.recorder.patches.active or not isinstance(found, Mapping):
            return
        counts = [
            value for name, value in found.items() if _counts(name, value) and value >= _LEAST
        ]
        if not counts or len(self._files) >= _FILES:
            return
        states = [value for value in found.values() if isinstance(value, Mapping)]
        weights = {mark for state in states for mark in _marks_of(state.values())}
        if weights:
            held = (state.get("param_groups") for state in states if state.get("state"))
            plans = [plan for groups in held if (plan := _plan_of(groups)) is not None]
            self._files.append(_ReadFile(counts[0], weights, plans, caller()))

    def _begin(self, optimizer: Optimizer) -> None:
        """Take down an optimizer whose parameters are those of a file, at its first step."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        marks = set(_marks_of(parameters)) if self._files else set()
        file = next((file for file in self._files if file.weights & marks), None)
        if file is None:
            return
        self.looked.add("resumed optimizer")
        plan, known = _plan_of(optimizer.param_groups), file.plans or self._plans
        if known and plan not in known:
            return  # another stage
        begins = (file.count, file.count + 1)
        variables = {name: value for name, value in _counters() if value in begins}
        place = weakref.ref(optimizer), file, self.recorder.steps, variables, bool(file.plans)
        self._resumed.append(_Resumed(*place))

    def _go_on(self, optimizer: Optimizer) -> None:
        """See whether a number is counted on from that of the file, and the state of averages."""
        for one in self._resumed:
            if one.optimizer() is optimizer and not one.counts:
                averages = (each for state in optimizer.state.values() for each in state.values())
                one.stateful = any(isinstance(each, torch.Tensor) for each in averages)
                grown = [n for n, value in _counters() if value > one.variables.get(n, value)]
                one.counts = f"{grown[0]}\n{type(optimizer).__name__}" if grown else ""


def _counts(name: Any, value: Any) -> bool:
    """Say whether a number is one of epochs or steps, by its name."""
    named = isinstance(name, str) and not _COUNTED.isdisjoint(words_of(name))
    return named and type(value) is int


def _counters() -> Iterator[tuple[str, int]]:
    """Yield the numbers of epochs or steps that the running functions have, and their objects."""
    for frame in user_frames(_FRAMES):
        variables = variables_of(frame)
        held = getattr(variables.get("self"), "__dict__", {})
        for prefix, own in (("", variables), ("self.", held)):
            for name, value in own.items():
                if _counts(name, value):
                    yield prefix + name, value


def _marks_of(values: Iterable[Any]) -> Iterator[int]:
    """Yield a number for each of the first matrices among some values: vectors may begin alike."""
    matrices = [v for v in values if isinstance(v, torch.Tensor) and v.dim() > 1 and has_memory(v)]
    for matrix in [each for each in matrices if each.is_floating_point()][:_WEIGHTS]:
        some = sample_elements(matrix.detach(), _SAMPLED).cpu().double()  # a device waits for once
        if some.any():
            yield hash((matrix.shape, tuple(some.tolist())))


def _plan_of(groups: Any) -> _Plan | None:
    """Return the plan of an optimizer, by its groups of parameters, if it is one."""
    if not isinstance(groups, list) or not groups:
        return None
    rate = groups[0].get("initial_lr", groups[0].get("lr", 0.0))
    return _Plan(float(rate), sum(len(group["params"]) for group in groups))
