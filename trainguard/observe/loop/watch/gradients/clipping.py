"""Watches the clipping of gradients: what it saw, what it allowed, whether that held."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from math import inf, nan
from typing import Any

import torch
from torch.nn.utils import clip_grad

from trainguard.events.base import Event
from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.watch.gradients.gradients import global_norm
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import is_sharded, local_values
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROOM = 1.01  # what rounding and epsilon may leave above the limit
_LEAST = 10  # calls at a line, none of which found gradients that a step is made with
_EARLY = 2  # steps before which no clipping may have been seen
_LINES = 16  # of which calls are counted
_EDITS = 2  # of a gradient by clipping of values: from below and from above
_MATRIX = 2  # dimensions: learned weights of losses and temperatures may stay as they are


_Spent = tuple["weakref.ref[torch.Tensor]", int]  # a gradient and its version


@dataclass(slots=True)
class Clip:
    """
    What the calls of clipping in one window have seen.

    seen: ids of the parameters; totals: the norms of those that each call saw first.
    """

    limit: float = nan
    source: str = ""
    word: str = "taken"
    seen: set[int] = field(default_factory=set)
    totals: list[torch.Tensor] = field(default_factory=list)
    by_norm: bool = True


class Clipping(Watcher):
    """
    The columns norm_before, clip, clip_limit, clip_source, clip_share and unclipped.

    And the Probe event "idle clip": all calls at a line found no gradients since the last step.
    """

    makes = ("norm_before", "clip", "clip_limit", "clip_source", "clip_share", "unclipped", "order")
    relies_on = ("Scaling", "Gradients")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._idle: dict[str, list[int]] = {}  # by line: idle calls, and all
        self._spent: dict[int, _Spent] = {}  # gradients that a step was made with, by parameter

    def install(self, patches: Patches) -> None:
        """Listen to torch's functions, inside them where there is something inside."""
        patches.replace(clip_grad, "_clip_grads_with_norm_", self._by_norm)
        if not hasattr(clip_grad, "_clip_grads_with_norm_"):  # before torch 2.6
            for owner in (clip_grad, torch.nn.utils):
                patches.replace(owner, "clip_grad_norm_", self._whole)
        for owner in (clip_grad, torch.nn.utils):
            patches.replace(owner, "clip_grad_value_", self._by_value)

    def before_step(self, window: Window) -> Columns:
        """Hold what clipping saw against the gradients that the step is made with."""
        clip: Clip | None = window.clip
        if self._idle or window.index < _EARLY:
            grads = {id(p): g for p, _ in window.gradients() if (g := p.grad) is not None}
            self._spent |= {key: (weakref.ref(g), g._version) for key, g in grads.items()}  # noqa: SLF001
        if clip is None or window.norms is None:
            return {"norm_before": _total(window)} if clip is None else _words(clip)
        inside = [id(p) in clip.seen for p, _ in window.gradients()]
        totals = [t.detach().float().reshape(1).to(window.norms.device) for t in clip.totals]
        missed = [p for p, _ in window.gradients() if id(p) not in clip.seen and p.dim() >= _MATRIX]
        unclipped = self.recorder.names.parameter(missed[0]) if missed else ""
        together = torch.cat([window.norms, *totals])
        return _words(clip) | {
            "norm_before": Deferred(together, lambda n: _before(n, inside)),
            "clip_share": Deferred(together, lambda n: _share(n, inside)),
            "clip": Deferred(together, lambda n: _outcome(clip, n, inside, whole=not missed)),
            "unclipped": unclipped,
        }

    def finish(self) -> Iterator[Event]:
        """Return the lines that clip what no step is made with."""
        for source, idle in self._idle.items():
            if _LEAST <= idle[1] == idle[0]:
                yield make_probe("idle clip", *idle, source=source)

    def _by_norm(self, clip: Callable[..., None]) -> Callable[..., None]:
        """Return the inner half of torch's clipping by norm, telling what it is given."""

        @wraps(clip)
        def wrapper(
            parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
        ) -> None:
            """Scale the gradients down."""
            held = _as_list(parameters)
            clip(held, max_norm, total_norm, *args, **kwargs)
            self._saw(held, max_norm, total_norm)

        return wrapper

    def _whole(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's clipping by norm as one piece, telling what it was given."""

        @wraps(clip)
        def wrapper(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            """Scale the gradients down, and return their norm."""
            held = _as_list(parameters)
            total = clip(held, max_norm, *args, **kwargs)
            self._saw(held, max_norm, total)
            return total

        return wrapper

    def _by_value(self, clip: Callable[..., None]) -> Callable[..., None]:
        """Return torch's clipping by value, telling what it was given."""

        @wraps(clip)
        def wrapper(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
            """Cut the elements of the gradients."""
            held = _as_list(parameters)
            clip(held, clip_value, *args, **kwargs)
            self._saw(held, clip_value, None)

        return wrapper

    @shielded
    def _saw(self, parameters: list[torch.Tensor], limit: float, total: Any) -> None:
        """Note one call of clipping in the windows that it concerns; measuring alone is none."""
        limit = float(limit)
        if not self.recorder.is_looking() or limit == inf:
            return
        ids = {id(parameter) for parameter in parameters}
        windows = self.recorder.windows
        concerned = [w for w in windows if ids & {id(p) for p in w.parameters}]
        if isinstance(total, torch.Tensor) and is_sharded(total):
            return
        total = local_values(total) if isinstance(total, torch.Tensor) else total
        edits = _EDITS if total is None else 1
        idle = {id(w): _is_idle(w, ids, self._spent, edits) for w in concerned}
        self._count(concerned, ids, idle=all(idle.values()))
        for window in concerned if parameters else windows[-1:]:
            clip = window.clip = window.clip or Clip(limit, caller(3))
            window.edit("clip", edits)
            scale = self.recorder.scaling.at(window)
            clip.word = _word(ids, scale, idle=idle.get(id(window), False))
            clip.by_norm = clip.by_norm and total is not None
            if total is not None and ids - clip.seen:
                clip.totals.append(total)
            clip.seen |= ids

    def _count(self, windows: list[Window], ids: set[int], *, idle: bool) -> None:
        """Count a call at its line, where it is known which gradients steps were made with."""
        held = [p for w in windows for p in w.parameters if id(p) in ids and p.grad is not None]
        source = caller(4)
        if windows and (len(self._idle) < _LINES or source in self._idle):
            known = self._idle.setdefault(source, [0, 0])
            refs = [self._spent.get(id(parameter)) for parameter in held]
            is_known = all(ref is not None and ref[0]() is not None for ref in refs)
            if is_known or any(map(_has_received, windows)):
                known[:] = known[0] + idle, known[1] + 1
        for parameter in held if idle else []:
            grad = parameter.grad
            if grad is not None:
                self._spent[id(parameter)] = weakref.ref(grad), grad._version  # noqa: SLF001


def _as_list(parameters: Any) -> list[torch.Tensor]:
    """Return the parameters as a list; a generator that was used up gives an empty one."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    return list(parameters) if isinstance(parameters, Iterable) else []


def _word(ids: set[int], scale: Any, *, idle: bool) -> str:
    """Say what clipping found in a window."""
    if not ids:
        return "no parameters"
    if idle:
        return "empty"
    if isinstance(scale, float) and scale == 1.0:
        return "taken"
    return "scaled"


def _is_idle(window: Window, ids: set[int], spent: dict[int, _Spent], edits: int) -> bool:
    """Say whether parameters got no gradients since the last step, from autograd or by hand."""
    if _has_received(window) or window.index + len(window.losses) == 0:
        return False
    held = [(id(p), g) for p in window.parameters if id(p) in ids and (g := p.grad) is not None]
    return all(_is_spent(g, spent.get(key), edits) or _is_zero(g) for key, g in held)


def _has_received(window: Window) -> bool:
    """Say whether autograd has given any gradients since the last step."""
    return not window.fresh or any(window.received)


def _is_spent(grad: torch.Tensor, spent: _Spent | None, edits: int) -> bool:
    """Say whether a step was made with a gradient, which clipping alone has edited since."""
    return spent is not None and spent[0]() is grad and grad._version <= spent[1] + edits  # noqa: SLF001


def _is_zero(grad: torch.Tensor) -> bool:
    """Say whether a gradient was cleared where it is."""
    own = local_values(grad)
    return own is None or not own.any()


def _words(clip: Clip) -> Columns:
    """Return the columns that need no measuring."""
    limit = clip.limit if clip.by_norm else nan
    return {"clip": clip.word, "clip_limit": limit, "clip_source": clip.source}


def _total(window: Window) -> Any:
    """Return the norm of all gradients, where there are any."""
    return nan if window.norms is None else Deferred(window.norms, global_norm)


def _before(numbers: list[float], inside: list[bool]) -> float:
    """Return the norm before clipping: what the calls measured, and what they did not see."""
    norms, totals = numbers[: len(inside)], numbers[len(inside) :]
    return global_norm([*totals, *(n for n, seen in zip(norms, inside, strict=True) if not seen)])


def _share(numbers: list[float], inside: list[bool]) -> float:
    """Return the share of the squared norm before clipping that the calls saw."""
    whole = _before(numbers, inside)
    seen = global_norm(numbers[len(inside) :])
    return (seen / whole) ** 2 if 0 < whole < inf else 1.0


def _outcome(clip: Clip, numbers: list[float], inside: list[bool], *, whole: bool) -> str:
    """Say what clipping did, once it is known what the step was made with."""
    norms, totals = numbers[: len(inside)], numbers[len(inside) :]
    now = global_norm(n for n, seen in zip(norms, inside, strict=True) if seen)
    if clip.word != "taken":
        return clip.word
    if clip.by_norm and len(totals) == 1 and now > clip.limit * _ROOM and now < inf:
        return "undone"
    return "taken" if whole else "partial"
