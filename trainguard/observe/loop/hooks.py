"""
The places at which a recorder listens: calls of modules, backward, steps of optimizers.

It watches state rather than calls wherever it can. A step made by hand is one that moved
parameters which had just got a gradient; a gradient was cleared when it is no longer there.
"""

import threading
from collections.abc import Callable
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.watcher import Columns
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.arrays import number_in
from trainguard.observe.tools.heap import living
from trainguard.observe.tools.patches import is_abstract, tell_after, unseen

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder


def install(recorder: "Recorder") -> None:
    """Begin to listen, until the recorder's patches are undone."""
    recorder.patches.replace(nn.Module, "__call__", lambda call: _calls(recorder, call))
    recorder.patches.replace(
        torch.autograd, "backward", lambda backward: _backwards(recorder, backward)
    )
    recorder.patches.replace(torch.autograd, "grad", lambda grad: _returns(recorder, grad))
    recorder.functional.install()
    recorder.patches.replace(Optimizer, "__init__", tell_after(partial(_see_made, recorder)))
    for found in living(Optimizer):  # those made before
        if hasattr(found, "param_groups"):
            recorder.window_of(found).earlier = True
    recorder.thread.steps = steps = _Steps(recorder)
    if recorder.thread.is_beside:  # the first recording passes steps on: torch iterates over these
        return
    for register, hook in (
        (register_optimizer_step_pre_hook, steps.before),
        (register_optimizer_step_post_hook, steps.after),
    ):
        recorder.patches.on_undo(register(hook).remove)


def _calls(recorder: "Recorder", call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Module.__call__` that tells of the outermost calls and of what they called."""
    inside = threading.local()
    called, graphless, builds = recorder.called, recorder.graphless, torch.is_grad_enabled
    thread, compiling = recorder.thread, torch.compiler.is_compiling
    bare = recorder.is_bare

    @wraps(call)
    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call the module, and tell of it once it is done."""
        if compiling():
            return call(module, *args, **kwargs)
        if getattr(inside, "module", None) is not None or recorder.backward:  # a checkpoint's
            called.add(id(module))
            if not builds() and getattr(inside, "builds", False):
                graphless.add(id(module))
            return call(module, *args, **kwargs)
        if thread.splits and builds() and thread.part() is not None:
            return nn.Module.__call__(module, *args, **kwargs)  # the new recording sees it too
        if recorder.passes_by(builds()):
            called.add(id(module))
            inside.module, inside.builds = module, False
            try:
                return call(module, *args, **kwargs)
            finally:
                inside.module = None
        if is_abstract():
            return call(module, *args, **kwargs)
        _begin_call(recorder, module, args, kwargs)
        for told in tuple(recorder.before_pass):
            recorder.faults.look(told, module)
        inside.builds = builds()
        inside.module, recorder.calling = module, not recorder.faults.look(bare, module)
        try:
            output = call(module, *args, **kwargs)
        finally:
            inside.module, recorder.calling = None, False
        if type(module).__name__ != "GraphModule" and not _is_meta(output):
            # Not the inside of a compiled module, and nothing without values.
            called.add(id(module))
            recorder.forward_ends(module, (*args, *kwargs.values()), output, tuple(kwargs))
        return output

    return wrapper


def _begin_call(recorder: "Recorder", module: nn.Module, args: Any, kwargs: Any) -> None:
    """Move the parameters of an outermost module, or ask about its call, where that is wanted."""
    if recorder.nudge is not None:
        recorder.nudge.move_module(module)
    if recorder.asks is not None:
        recorder.faults.look(recorder.asks, module, args, kwargs)


def _backwards(recorder: "Recorder", backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.autograd.backward` that tells before and after it."""
    patches = recorder.patches

    @wraps(backward)
    def wrapper(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Run backward; one inside another (of a checkpoint) is part of it."""
        if not patches.active or patches.blind or is_abstract():
            return backward(tensors, *args, **kwargs)
        if recorder.thread.is_apart():
            return backward(tensors, *args, **kwargs)
        if not recorder.thread.claim():
            recorder.thread.stop()
        if recorder.backward or patches.blind:
            return backward(tensors, *args, **kwargs)
        if not isinstance(tensors, torch.Tensor):
            tensors = tuple(tensors)  # a generator could not be read twice
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if not isinstance(loss, torch.Tensor) or _is_meta(loss):
            return backward(tensors, *args, **kwargs)
        recorder.unheard = not patches.watching
        if recorder.unheard:
            _pass_backward(recorder)
        if not patches.watching and not recorder.faults.look(_is_alarming, loss):
            return backward(tensors, *args, **kwargs)
        recorder.woken = recorder.woken or not patches.watching
        patches.watching = True
        recorder.backward_begins(loss)
        recorder.backward = True
        try:
            result = backward(tensors, *args, **kwargs)
        finally:
            recorder.backward = False
        recorder.backward_ends(loss)
        return result

    return wrapper


def _pass_backward(recorder: "Recorder") -> None:
    """Count a backward that nobody watches, and tell those who want to know of it."""
    recorder.hand.count()
    for told in recorder.at_unwatched:
        told()


def _returns(recorder: "Recorder", grad: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.autograd.grad` that is taken for a backward where no optimizer is."""
    patches, elsewhere = recorder.patches, recorder.thread.is_elsewhere

    @wraps(grad)
    def wrapper(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute gradients; those with respect to parameters may be stepped along by hand."""
        seen = patches.active and not patches.blind and not elsewhere()
        inside = recorder.backward or recorder.calling or recorder.functional.is_computing
        if not seen or inside or is_abstract():
            return grad(outputs, inputs, *args, **kwargs)
        if not isinstance(inputs, torch.Tensor):
            inputs = tuple(inputs)  # a generator could not be read twice
        parts = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        follow = recorder.functional.follow
        if not patches.watching:
            recorder.faults.look(follow, parts)
            recorder.hand.count()
        if not patches.watching:
            return grad(outputs, inputs, *args, **kwargs)
        again = kwargs.get("create_graph", len(args) > 2 and args[2])
        one = isinstance(outputs, torch.Tensor) and unseen(outputs.numel) == 1
        stand_ins = recorder.faults.look(follow, parts) if one and not again else ()
        if not one or not (stand_ins or recorder.faults.look(recorder.hand.takes, parts, again)):
            return grad(outputs, inputs, *args, **kwargs)
        recorder.backward_begins(outputs)
        gradients = grad(outputs, inputs, *args, **kwargs)
        pairs = zip(stand_ins or parts, gradients, strict=False)
        recorder.backward_ends(outputs, *((p, g.detach()) for p, g in pairs if g is not None))
        return gradients

    return wrapper


def _is_alarming(loss: torch.Tensor) -> bool:
    """Say whether a loss shows, without waiting for a device, that its step is to be recorded."""
    if not loss.is_cpu or loss.numel() != 1:
        return False
    value = number_in(loss)  # torch.isfinite is several operations
    return bool(value - value != 0)


def _see_made(recorder: "Recorder", _: None, optimizer: Optimizer, /, *__: Any, **___: Any) -> None:
    """Make a new optimizer known, and open its window."""
    if recorder.patches.active and not recorder.thread.is_apart():
        owner = recorder.thread.part() or recorder
        owner.faults.look(owner.window_of, optimizer)
        if recorder.nudge is not None:
            recorder.nudge.move_optimizer(optimizer)


def _is_meta(output: Any) -> bool:
    """Say whether a module has returned a tensor that has only a shape."""
    first = output if isinstance(output, torch.Tensor) else next(tensors_in(output), None)
    return first is not None and unseen(getattr, first, "is_meta")


class _Steps:
    """The two hooks around the steps of all optimizers."""

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self._local = threading.local()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Measure what the step will be made with: now, or after the closure that computes it."""
        if torch.compiler.is_compiling():  # at once: what follows cannot be compiled
            return None
        recorder, columns = self.recorder, Columns()
        if recorder.thread.is_apart():
            other = recorder.thread.beside.get(get_ident())
            return other and other.thread.steps.before(optimizer, args, kwargs)
        if not recorder.patches.active or is_abstract():
            return None
        self._running().append((optimizer, columns, []))
        recorder.hand.leave_to_optimizers()
        window = recorder.faults.look(self._open, optimizer) if recorder.is_looking() else None
        if window is None:
            return None
        # Bound to the class: the hook is called with `self` in front.
        rest = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure", rest[0] if rest else None)
        if not callable(closure):
            columns.update(recorder.step_begins(window))
            return None
        wrapper = self._wrap_closure(closure, window, columns)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapper}
        return (*args[: len(args) - len(rest)], wrapper, *rest[1:]), kwargs

    def after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Record the step, unless it only passed on what an optimizer inside it did."""
        if torch.compiler.is_compiling():
            return
        recorder, running = self.recorder, self._running()
        if recorder.thread.is_apart():
            other = recorder.thread.beside.get(get_ident())
            if other is not None:
                other.thread.steps.after(optimizer, _args, _kwargs)
            return
        while running:
            stepping, columns, inner = running.pop()
            if stepping is optimizer:  # one that raised half-way is still on the list
                break
        else:
            return
        if running:
            running[-1][2].append(True)
        if inner or not recorder.patches.active:
            return
        if recorder.patches.blind or recorder.thread.is_elsewhere():
            recorder.count_step()
        elif columns:
            recorder.step_ends(recorder.window_of(optimizer), columns)
        else:
            recorder.step_passes(recorder.window_of(optimizer))

    def _running(self) -> list[tuple[Optimizer, Columns, list[bool]]]:
        """Return the optimizers that step in this thread, the innermost last."""
        running: list[tuple[Optimizer, Columns, list[bool]]] | None
        running = getattr(self._local, "running", None)
        if running is None:
            running = self._local.running = []
        return running

    def _open(self, optimizer: Optimizer) -> Window | None:
        """Return the window of an optimizer whose step is to be recorded."""
        window = self.recorder.window_of(optimizer)
        if any(p.is_meta for p in window.parameters[:1]):
            return None
        if not (window.is_watched or self.recorder.woken):
            return None
        window.hold()
        return window

    def _wrap_closure(
        self, closure: Callable[..., Any], window: Window, columns: Columns
    ) -> Callable[..., Any]:
        """Return a closure after which what the step is made with is measured."""
        first: list[list[Any]] = []

        @wraps(closure)
        def wrapper(*inner: Any, **named: Any) -> Any:
            """Run the closure, then measure; only the first call's losses are the step's."""
            value = closure(*inner, **named)
            first.append(window.losses)
            window.losses = first[0]
            window.hold()
            columns.update(self.recorder.step_begins(window))
            return value

        return wrapper
