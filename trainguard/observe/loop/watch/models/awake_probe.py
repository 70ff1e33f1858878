"""Watches for evaluations in training mode, by trying one input of a pass without a graph twice."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, attempt
from trainguard.observe.loop.watch.models.repeat_probe import compare_passes
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import checksums

_STEPS = 3  # around which there are such passes
_AVERAGED = 3  # passes over one input between two steps, of which an average is taken
_MOST = 32  # passes that are counted


class AwakeProbe(Watcher):
    """
    The Probe event "awake": what a module drops in training mode, in passes without a graph.

    Only where the script says a number of an evaluation, and no pass of any module, with a graph or
    without one, was made in evaluation mode: then that number is of what is dropped by chance.
    """

    makes = ("Probe:awake",)
    relies_on = ("LoggedValues",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._steps = set[int]()
        self._given = Counter[tuple[Any, ...]]()
        self._found: Event | None = None

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Make a pass without a graph again, once there were some."""
        if not (forward.training and self.recorder.probe):
            self._give_up()
            return
        if forward.gradients or not self.recorder.steps or not self._may_look(forward, inputs):
            return
        self._steps.add(self.recorder.steps)
        if len(self._steps) == _STEPS and self._found is None:
            call = CopyableCall.of(forward, module, inputs)
            found, made = self.recorder.faults.look_apart(
                forward.module, call.module, lambda: self._try(call)
            )
            self.looked |= {"awake"} if made else set()
            if found is None or found[-1] != "repeat":
                self._give_up()
                return
            measured, reference, source, _ = found
            named = {"step": forward.step, "label": forward.module, "source": source}
            self._found = make_probe("awake", measured, reference, **named)

    def _may_look(self, forward: Forward, inputs: tuple[Any, ...]) -> bool:
        """Count a pass; one of several draws over an input says that what is dropped is meant."""
        if sum(self._given.values()) >= _MOST:
            return False
        given = list(tensors_in(inputs))
        may = all(tensor.is_cpu for tensor in given)  # elsewhere a checksum would be waited for
        if may:
            key = forward.module, self.recorder.steps, *checksums(given)
            self._given[key] += 1
            may = self._given[key] < _AVERAGED
        if not may:
            self._give_up()
        return may

    def _try(self, call: CopyableCall) -> tuple[float, float, str, str] | None:
        """Make a pass twice on a copy that drops what its module drops."""
        return attempt(
            self.recorder, call, lambda run: compare_passes(run, call.inputs), as_it_is=True
        )

    def finish(self) -> Iterable[Event]:
        """Return what was dropped in evaluations of which a number is said."""
        said = self.recorder.watcher(LoggedValues).says_evaluation
        return [self._found] if self._found is not None and said else []

    def _give_up(self) -> None:
        """Find nothing: a model is evaluated in its mode, or what is dropped is meant."""
        self._found = None
        self.recorder.dismiss(self)
