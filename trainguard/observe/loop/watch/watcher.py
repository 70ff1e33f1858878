"""
A Watcher is told what happens in a training, and adds what it saw to the steps and to the trace.

Every method is optional: the recorder only calls those that a watcher defines. They run inside the
user's training, so they are cheap, keep no tensor with a graph, draw no random number and change
nothing. Values that may live on an accelerator stay tensors of one element until a step is over:
the recorder fetches those of a step together.

One that raises is switched off (see `faults`): the recorder's calls are shielded, and so must be
every method that is called from a patch.
"""

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat, TypeVar

import torch
from torch import nn

from trainguard.events.base import EVERYTHING, Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.patches import Patches

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

Columns = dict[str, Any]  # fields of a Step; a tensor of one element becomes a float
F = TypeVar("F", bound=Callable[..., Any])
_INSTANTS = (
    "forward",
    "evaluate",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
)
_BOTH = (False, True)


class Watcher:
    """
    What a watcher can do; see the module.

    makes: the columns of a Step and the kinds of events that are not known without it ("Probe:mix"
        for one kind of probe). relies_on: names of the watchers whose work it uses.
    """

    makes: ClassVar[tuple[str, ...]] = (EVERYTHING,)
    relies_on: ClassVar[tuple[str, ...]] = ()

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self.looked: set[str] = set()  # probes that were made, whether or not they found anything

    def install(self, patches: Patches) -> None:
        """Replace what must be replaced in torch; `patches` puts it back."""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """
        See that an outermost module was called, under whatever grad mode.

        inputs: its positional arguments, then the values of its keywords.
        """

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See a call that builds no graph, once `forward` has been told of it."""

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what is handed to backward (its first tensor), with its graph still there."""

    def after_backward(self, loss: torch.Tensor) -> None:
        """See that gradients have arrived."""

    def before_step(self, window: Window) -> Columns:
        """Return columns of the step that an optimizer is about to make (closure done)."""
        return {}

    def after_step(self, window: Window) -> Columns:
        """Return columns of the step that an optimizer has just made, or a scaler skipped."""
        return {}

    def so_far(self) -> Iterable[Event]:
        """Return what is added up by now, for whoever looks while the run goes on."""
        return ()

    def finish(self) -> Iterable[Event]:
        """Return the events that add up the whole run."""
        return ()


def make_probe(
    name: str, measured: SupportsFloat, reference: SupportsFloat = 0.0, **rest: Any
) -> Probe:
    """Return a Probe event: what was found, what it is held against, and where."""
    return Probe(probe=name, measured=float(measured), reference=float(reference), **rest)


def shielded(method: F) -> F:
    """Return a method of a watcher, called from a patch, that switches it off where it fails."""

    @wraps(method)
    def wrapper(watcher: Watcher, *args: Any, **named: Any) -> Any:
        """Call the method; None where it fails, is switched off, or is another thread's."""
        if not watcher.recorder.thread.hears():
            return None
        return _call(watcher, method, args, named)

    return wrapper  # type: ignore[return-value]


def shielded_anywhere(method: F) -> F:
    """Return a method as `shielded` does, but one that hears every thread."""

    @wraps(method)
    def wrapper(watcher: Watcher, *args: Any, **named: Any) -> Any:
        """Call the method; None where it fails, or is switched off."""
        return _call(watcher, method, args, named)

    return wrapper  # type: ignore[return-value]


def _call(watcher: Watcher, method: Callable[..., Any], args: Any, named: dict[str, Any]) -> Any:
    """Return what a method of a watcher does; None where it fails, or is switched off."""
    call = partial(method, **named) if named else method
    return watcher.recorder.faults.call(watcher, call, watcher, *args)


def now_and_then(method: F) -> F:
    """Mark a method of a watcher that does nothing but at the recorder's closer looks."""
    method.now_and_then = True  # type: ignore[attr-defined]
    return method


def listeners(watchers: Iterable[Watcher]) -> dict[tuple[str, bool], list[Any]]:
    """Return the methods that watchers define, by their instant and whether it is a closer look."""
    told = {name: [getattr(w, name) for w in watchers if overrides(w, name)] for name in _INSTANTS}
    usual = {name: [m for m in told[name] if not hasattr(m, "now_and_then")] for name in told}
    return {(name, closer): (told if closer else usual)[name] for name in told for closer in _BOTH}


def overrides(watcher: Watcher, method: str) -> bool:
    """Say whether a watcher defines a method itself."""
    return getattr(type(watcher), method) is not getattr(Watcher, method)
