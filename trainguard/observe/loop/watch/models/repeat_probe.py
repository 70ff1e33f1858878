"""Watches for evaluations that give another output each time, by trying one input twice."""

import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from linecache import getline
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.module_copy import (
    CopyableCall,
    Run,
    attempt,
    difference,
    largest,
)
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import checksums
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.module_names import unwrap
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import user_frame

_MOST_MODULES = 4
_AVERAGED = 3  # passes over one input: averages are taken of more, and two may be two evaluations
_ROUNDING = 1e-5
_PASSES = 4  # until one differs: a few decisions are often the same in two of them

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
_SAYS = "True"
_DECIDES = ("rand", "random", "random_sample", "randint", "randn", "uniform")  # of all generators
_BY_CHANCE, _AS_TOLD = "repeat by chance", "repeat as told"
_ATTENDS = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


@dataclass(slots=True)
class _Drawn:
    """
    What was found of a module, and the passes that it has made since.

    stated: whether what drops was told to, whatever the mode is, or a single number was drawn:
    that may be meant. measured: whether a loss was taken of an evaluation. passes: how often each
    input came, to the parameters that it has now.
    meant: whether one came so often that an average was taken.
    """

    probe: Probe
    stated: bool
    measured: bool = False
    meant: bool = False
    state: tuple[int, int] = (0, 0)
    passes: Counter[tuple[int | None, ...]] = field(default_factory=Counter)


class RepeatProbe(Watcher):
    """
    The Probe events "repeat", of the first evaluation pass of a module.

    What samples on purpose, as a variational autoencoder does, is left alone: only what becomes
    deterministic once nothing is dropped any more, or once no line draws a single number for the
    whole batch, is told. Several passes over one input are left alone too, and modules of the
    latter kind of which no loss is measured, or that say training=True and of which no number is
    said either: that may be meant.
    """

    makes = ("Probe:repeat",)
    relies_on = ("LoggedValues", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[str, _Drawn] = {}
        self._tried: set[str] = set()
        self._evaluated = ""  # the module of the pass before, if that was an evaluation

    def install(self, patches: Patches) -> None:
        """Be told of losses."""
        if self.recorder.probe:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Make the first evaluation pass of a module again; of what was found, count the passes."""
        self._evaluated = "" if forward.gradients or forward.training else forward.module
        if not self._evaluated or not self.recorder.probe or not self.recorder.steps:
            return
        if forward.module in self._found:
            self._count(self._found[forward.module], module, inputs)
        elif forward.module not in self._tried and len(self._tried) < _MOST_MODULES:
            call = CopyableCall.of(forward, module, inputs)
            if not _has_rows_again(call):
                self._try(forward, call)

    def finish(self) -> Iterable[Event]:
        """Return what was found and is not meant."""
        said = self.recorder.watcher(LoggedValues).says_evaluation
        for drawn in self._found.values():
            measured = drawn.measured or (said and drawn.probe.probe == _AS_TOLD)
            if not drawn.meant and (measured or not drawn.stated):
                yield drawn.probe

    def _on_loss(self, tally: LossCalls, *_: Any) -> None:
        """See that a loss was computed without gradients."""
        if tally.evaluation and self._evaluated in self._found:
            self._found[self._evaluated].measured = True

    def _count(self, drawn: _Drawn, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Count a pass over an input: an average over several is one whose randomness is meant."""
        first = next(nn.Module.parameters(unwrap(module)), None)
        state = (self.recorder.steps, first._version if first is not None else 0)  # noqa: SLF001
        if drawn.state != state:
            drawn.state = state
            drawn.passes.clear()
        given = tuple(checksums(list(tensors_in(inputs))))
        drawn.passes[given] += 1
        drawn.meant |= drawn.passes[given] >= _AVERAGED

    def _try(self, forward: Forward, call: CopyableCall) -> None:
        """Make a pass twice on a copy."""
        self._tried.add(forward.module)
        found, made = self.recorder.faults.look_apart(
            forward.module,
            call.module,
            lambda: attempt(self.recorder, call, lambda run: compare_passes(run, call.inputs)),
        )
        self.looked |= {"repeat"} if made else set()
        if found is not None:
            measured, reference, source, kind = found
            probe = make_probe(
                kind, measured, reference, step=forward.step, label=forward.module, source=source
            )
            self._found[forward.module] = _Drawn(probe, kind != "repeat")
            self._count(self._found[forward.module], call.module, call.inputs)


def _has_rows_again(call: CopyableCall) -> bool:
    """Say whether the first row of a batch comes again, as where several draws are one batch."""
    rows = next(iter(tensors_in(call.inputs)), None)
    if rows is None or not has_rows(rows) or rows.dim() < 2 or len(rows) < 2:
        return False
    return bool((rows[1:] == rows[:1]).flatten(1).all(1).any())


def compare_passes(run: Run, inputs: tuple[Any, ...]) -> tuple[float, float, str, str] | None:
    """Return how far two passes differ, rounding, the line that is why, and the probe; or None."""
    first = run(inputs)
    reference = _ROUNDING * largest(first)
    again = (difference(first, run(inputs)) for _ in range(_PASSES))
    measured = next((each for each in again if each > reference), 0.0)
    if not reference < measured < float("inf"):
        return None
    with _NothingDropped() as mode:
        still = difference(run(inputs), run(inputs))
    if still <= reference and mode.sources:
        return measured, reference, mode.sources[0], _AS_TOLD if mode.stated else "repeat"
    with _ChanceFixed() as chance:
        still = difference(run(inputs), run(inputs))
    if still > reference or not chance.drawn:
        return None
    return measured, reference, next(iter(chance.drawn)), _BY_CHANCE


class _ChanceFixed(TorchFunctionMode):
    """
    Let each line that draws a single number draw the same one every time.

    One number for a whole batch is no noise of its samples: it decides what is done with them.
    drawn: the number of each line of the user's code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[str, Any] = {}
        self._patches, self._thread = Patches(), get_ident()

    def __enter__(self) -> "_ChanceFixed":
        """Listen to Python's and numpy's generators too."""
        for owner, names in ((random, _DECIDES), (sys.modules.get("numpy.random"), _DECIDES)):
            for name in names if owner is not None else ():
                self._patches.replace(owner, name, lambda draw: partial(self._fix, draw))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Put the generators back."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.undo()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or return what was drawn at this line before."""
        draws = getattr(func, "__name__", "") in _DECIDES
        return self._fix(func, *args, **kwargs or {}) if draws else func(*args, **kwargs or {})

    def _fix(self, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Draw; return what was drawn first at this line, where it is a single number."""
        made = draw(*args, **kwargs)
        if get_ident() != self._thread:  # where there can be no child, others draw meanwhile
            return made
        size = made.numel() if isinstance(made, torch.Tensor) else getattr(made, "size", 1)
        frame = user_frame(inspect.currentframe()) if size == 1 else None
        if frame is None:
            return made
        return self.drawn.setdefault(f"{frame.f_code.co_filename}:{frame.f_lineno}", made)


class _NothingDropped(TorchFunctionMode):
    """
    Let functions that drop elements at random drop nothing.

    sources: the lines of the user's code in which they would have.
    stated: whether each of them says so: a default can be told from what is given there alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.stated = True

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
            self.stated &= _SAYS in getline(frame.f_code.co_filename, frame.f_lineno)


def _drops(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Say whether a call of dropout drops anything."""
    share = args[1] if len(args) > 1 else named.get("p", 0.5)
    training = args[2] if len(args) > 2 else named.get("training", named.get("train", True))
    return bool(share) and bool(training)
