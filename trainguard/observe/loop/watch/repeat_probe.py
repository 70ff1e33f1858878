"""Watches for evaluations that give another output each time, by trying one input twice."""

import inspect
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.loss_calls import LossCalls
from trainguard.observe.loop.watch.loss_functions import LossFunctions
from trainguard.observe.loop.watch.module_copy import (
    CopyableCall,
    Run,
    attempt,
    difference,
    largest,
)
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import user_frame

_MOST_MODULES = 4
_PATIENCE = 64  # passes without a loss
_ROUNDING = 1e-5

# Functions that drop elements, and the place of the share among the arguments of those that attend.
_DROPS = {
    "alpha_dropout",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
    "feature_dropout",
}
_ATTENDS = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


class RepeatProbe(Watcher):
    """
    The Probe events "repeat", of the first evaluation pass of a module that a loss was taken of.

    What samples on purpose, as a variational autoencoder does, is left alone: only what becomes
    deterministic once nothing is dropped any more is told. So are several passes for one loss.
    """

    makes = ("Probe:repeat",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: list[Probe] = []
        self._tried: set[str] = set()
        self._pass: tuple[Forward, CopyableCall] | None = None  # the last one, no loss seen since
        self._passes = 0
        self._measured_inside = False  # whether a loss came before the end of a pass

    def install(self, patches: Patches) -> None:
        """Be told of losses."""
        if self.recorder.probe:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember an evaluation pass until its loss is computed, unless that was inside it."""
        self._pass = None
        if not self.recorder.probe or forward.module in self._tried:
            return
        if forward.gradients or forward.training or len(self._tried) >= _MOST_MODULES:
            self._passes, self._measured_inside = 0, False
            return
        self._passes += 1
        self._pass = (forward, CopyableCall.of(forward, module, inputs))
        if self._measured_inside:
            self._try()
        elif self._passes > _PATIENCE:
            self._tried.add(forward.module)
            self._pass = None

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self._pass = None
        return self._found

    @shielded
    def _on_loss(self, tally: LossCalls, *_: Any) -> None:
        """See that a loss was computed without gradients: of the last pass, or inside of one."""
        if not tally.evaluation:
            return
        if self._pass is None:
            self._measured_inside = True
        elif self._passes > 1:  # an average over several, whose randomness is meant
            self._tried.add(self._pass[0].module)
            self._pass, self._passes = None, 0
        else:
            self._try()

    def _try(self) -> None:
        """Make the last pass twice on a copy."""
        done, self._pass = self._pass, None
        self._passes, self._measured_inside = 0, False
        if done is None:
            return
        forward, call = done
        self._tried.add(forward.module)
        found, made = self.recorder.faults.look_apart(
            forward.module,
            call.module,
            lambda: attempt(self.recorder, call, lambda run: _compare_passes(run, call.inputs)),
        )
        self.looked |= {"repeat"} if made else set()
        if found is not None:
            measured, reference, source = found
            self._found.append(
                Probe(
                    probe="repeat",
                    measured=measured,
                    reference=reference,
                    step=forward.step,
                    label=forward.module,
                    source=source,
                )
            )


def _compare_passes(run: Run, inputs: tuple[Any, ...]) -> tuple[float, float, str] | None:
    """Return how far two passes differ, what rounding is, and the line that drops; or None."""
    first, second = run(inputs), run(inputs)
    reference = _ROUNDING * largest(first)
    measured = difference(first, second)
    if not reference < measured < float("inf"):
        return None
    with _NothingDropped() as mode:
        still = difference(run(inputs), run(inputs))
    return (measured, reference, mode.sources[0]) if still <= reference and mode.sources else None


class _NothingDropped(TorchFunctionMode):
    """
    Let functions that drop elements at random drop nothing.

    sources: the lines of the user's code in which they would have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or return what it was to drop elements from."""
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPS and _drops(args, named):
            self._note()
            return args[0] if args else named["input"]
        place = _ATTENDS.get(name, 0)
        if place and (named.get("dropout_p") or (len(args) > place and args[place])):
            self._note()
            args = (*args[:place], 0.0, *args[place + 1 :]) if len(args) > place else args
            named |= {"dropout_p": 0.0} if "dropout_p" in named else {}
        return func(*args, **named)

    def _note(self) -> None:
        """Note the line of the user's code that is running."""
        frame: FrameType | None = user_frame(inspect.currentframe())
        if frame is not None:
            self.sources.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _drops(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Say whether a call of dropout drops anything."""
    share = args[1] if len(args) > 1 else named.get("p", 0.5)
    training = args[2] if len(args) > 2 else named.get("training", named.get("train", True))
    return bool(share) and bool(training)
