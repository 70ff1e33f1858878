"""Watches gradients: when they arrive, what was left over, and their norms at the step."""

import weakref
from collections.abc import Callable, Iterable
from math import hypot, inf, isfinite, nan
from typing import Any

import torch

from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.local_values import is_sharded

Namer = Callable[[torch.Tensor], str]
_Pair = tuple[torch.Tensor, torch.Tensor]  # a parameter and its gradient
_MOST_LAYERS = 64


class Gradients(Watcher):
    """
    The columns received, held, norm, layers, leftover and its name, and part of culprit.

    unsound: whether the gradients of some step were not finite.
    """

    makes = ("received", "held", "norm", "layers", "leftover", "leftover_name", "culprit", "order")
    relies_on = ("Scaling",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.unsound = False

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what is left of gradients that the last step of an optimizer has used."""
        for window in self.recorder.windows:
            if not window.parameters:  # all of them are frozen for now: theirs may still be there
                continue
            if not window.fresh and not window.gradients():
                window.forget()
            if window.index and (window.fresh or window.leftover is not None):
                _look_for_leftovers(window, self.recorder.names.parameter)

    def after_backward(self, loss: torch.Tensor) -> None:
        """See which optimizers' parameters the backward reached."""
        for window in self.recorder.windows:
            window.reached = window.count()
            window.fresh = window.fresh and not window.reached
        reached = [window for window in self.recorder.windows if window.reached]
        for window in reached or self.recorder.windows:
            window.did("backward")

    def before_step(self, window: Window) -> Columns:
        """Measure the norm of each gradient, and of all of them."""
        pairs = window.gradients()
        columns: Columns = {
            "received": _count_received(window, pairs),
            "held": len(window.parameters),
        }
        if window.leftover is not None and not _was_overwritten(window, pairs):
            each, name, _ = window.leftover
            columns["leftover"] = Deferred(each, global_norm)
            columns["leftover_name"] = Deferred(each, name)
        if not pairs:
            if any(window.received):
                window.did("zero")
            window.norms = None
            return columns | {"norm": 0.0}
        scale = self.recorder.scaling.at(window)
        scaled = not isinstance(scale, float) or scale != 1
        window.norms = norms(pairs) / scale if scaled else norms(pairs)
        names = [self.recorder.names.parameter(p) for p, _ in pairs] if window.is_surveyed else []
        sizes = [(p.dim(), p.numel()) for p, _ in pairs] if window.is_surveyed else []
        sharded = any(is_sharded(g) for _, g in pairs if type(g) is not torch.Tensor)
        columns["norm"] = nan if sharded else Deferred(window.norms, global_norm)
        if names:
            columns["layers"] = Deferred(window.norms, lambda n: _layers(names, sizes, n))
        return columns

    def after_step(self, window: Window) -> Columns:
        """Name what was not finite first: what the loss showed, else a parameter's gradient."""
        if window.culprit or window.norms is None:
            return {"culprit": window.culprit} if window.culprit else {}
        name_of, count = self.recorder.names.parameter, window.norms.shape[0]
        # Those on the CPU are read before the step is over, so that nothing is kept by a reference.
        here = window.norms.is_cpu
        name_at = None if here else _namer(_stepped(window, count), name_of)

        def culprit(each: list[float]) -> str:
            """Return the last of the model whose gradient is not finite: it had it first."""
            if isfinite(sum(each)):
                return ""
            self.unsound = True
            bad = [i for i, norm in zip(range(count), each, strict=False) if norm - norm != 0]
            named = name_at or _namer(_stepped(window, count), name_of)
            return f"gradient of `{named(bad[-1])}`" if bad else ""

        return {"culprit": Deferred(window.norms, culprit)}


def _stepped(window: Window, count: int) -> list[torch.Tensor]:
    """Return the parameters that so many gradients were of, also where a step by hand has ended."""
    stepped = [parameter for parameter, _ in window.gradients()]
    if len(stepped) == count:
        return stepped
    return window.parameters if len(window.parameters) == count else []


def norms(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return one norm for each gradient, in float32, on the device of the first."""
    strided = torch.strided
    dense = [g if g.layout == strided and type(g) is torch.Tensor else _dense(g) for _, g in pairs]
    each = list(torch._foreach_norm(dense))  # noqa: SLF001 the public ones return one of all
    try:
        stacked = torch.stack(each)
        return stacked if stacked.dtype is torch.float32 else stacked.float()
    except RuntimeError:  # they are on several devices
        return torch.stack([n.to(each[0].device) for n in each]).float()


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return the values of a sparse gradient, the local part of a distributed one."""
    if gradient.is_sparse:
        return gradient.coalesce().values()
    local: Any = getattr(gradient, "to_local", None)  # all of it would take a call of all ranks
    return local() if local is not None else gradient


def _look_for_leftovers(window: Window, name_of: Namer) -> None:
    """Measure the gradients that are there before a backward, if none has come since the step."""
    pairs = window.gradients()
    if not pairs:
        if window.leftover is not None or "zero" not in window.order:
            window.order.insert(0, "zero")
        window.leftover = None
    elif window.fresh and "zero" not in window.order:  # else somebody has put them there since
        window.leftover = norms(pairs), _largest_among(pairs, name_of), _mark(pairs)
    elif window.leftover is not None and gradient_of(pairs[0][0]) is pairs[0][1]:
        # One that was there is zero in the meantime: on an accelerator this is not waited for.
        cleared, before = pairs[0][1].any().logical_not(), window.leftover[0]
        if bool(cleared) if cleared.is_cpu else len(before) == len(pairs):
            found = norms(pairs)
            found = found if cleared.is_cpu else found.where(cleared, before)
            window.leftover = found, _largest_among(pairs, name_of), _mark(pairs)


def _mark(pairs: list[_Pair]) -> tuple[int, int]:
    """Return what tells whether the last of some gradients is the same tensor, not written to."""
    return id(pairs[-1][1]), pairs[-1][1]._version  # noqa: SLF001


def _was_overwritten(window: Window, pairs: list[_Pair]) -> bool:
    """Say whether gradients were put in the place of others, as of masters, by no backward."""
    _, _, mark = window.leftover or (None, None, None)
    return bool(pairs) and not any(window.received) and mark != _mark(pairs)


def _count_received(window: Window, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Return how many parameters got a gradient; all that have one where nobody was watching."""
    counted = sum(1 for count in window.received if count)
    return counted if counted or window.losses else len(pairs)


def global_norm(each: Iterable[float]) -> float:
    """Return the norm of all from the norms of each; infinite where one is not finite."""
    total = hypot(*each)
    return total if total - total == 0 else inf


def _largest_among(pairs: list[_Pair], name_of: Namer) -> Callable[[list[float]], str]:
    """Return what names the parameter with the largest norm, or nothing where all are zero."""
    name_at = _namer([parameter for parameter, _ in pairs], name_of)

    def named(each: list[float]) -> str:
        """Return the name."""
        largest = max(each)
        return name_at(each.index(largest)) if largest > 0 else ""

    return named


def _namer(parameters: list[torch.Tensor], name_of: Namer) -> Callable[[int], str]:
    """Return what names a parameter by its place, and keeps none of them alive."""
    # Numbers of an accelerator come a step later, when their model may be gone.
    refs = [weakref.ref(parameter) for parameter in parameters]

    def named(place: int) -> str:
        """Return the name."""
        parameter = refs[place]() if place < len(refs) else None
        return "a parameter that is gone" if parameter is None else name_of(parameter)

    return named


def _layers(
    names: list[str], sizes: list[tuple[int, int]], each: list[float]
) -> tuple[tuple[str, float, int], ...]:
    """Return the norms of weights with two or more dimensions, evenly chosen where many."""
    rows = [
        (name, norm, size)
        for name, (dimensions, size), norm in zip(names, sizes, each, strict=True)
        if dimensions >= 2
    ]
    stride = -(-len(rows) // _MOST_LAYERS)
    return tuple(rows[:: stride or 1])
