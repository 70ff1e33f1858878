"""Watches the clipping of gradients: what it saw, what it allowed, whether that held."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from math import inf, nan
from typing import Any

import torch
from torch.nn.utils import clip_grad

from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.watch.gradients.gradients import global_norm
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import is_sharded, local_values
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROOM = 1.01  # what rounding and epsilon may leave above the limit
_EDITS = 2  # of a gradient by clipping of values: from below and from above
_MATRIX = 2  # dimensions: learned weights of losses and temperatures may stay as they are


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
    """The columns norm_before, clip, clip_limit, clip_source, clip_share and unclipped."""

    makes = ("norm_before", "clip", "clip_limit", "clip_source", "clip_share", "unclipped", "order")
    relies_on = ("Scaling", "Gradients")

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
        for window in concerned if parameters else windows[-1:]:
            clip = window.clip = window.clip or Clip(limit, caller(3))
            window.edit("clip", _EDITS if total is None else 1)
            clip.word = _word(window, ids, self.recorder.scaling.at(window))
            clip.by_norm = clip.by_norm and total is not None
            if total is not None and ids - clip.seen:
                clip.totals.append(total)
            clip.seen |= ids


def _as_list(parameters: Any) -> list[torch.Tensor]:
    """Return the parameters as a list; a generator that was used up gives an empty one."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    return list(parameters) if isinstance(parameters, Iterable) else []


def _word(window: Window, ids: set[int], scale: Any) -> str:
    """Say what clipping found in a window."""
    if not ids:
        return "no parameters"
    if window.fresh and window.index + len(window.losses) > 0 and not any(window.received):
        return "empty"
    if isinstance(scale, float) and scale == 1.0:
        return "taken"
    return "scaled"


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
