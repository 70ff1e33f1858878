"""Watches targets that a loss ignores: whether their number is that of a class with a name."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.events.origin import Origin
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import user_frame, variables_of
from trainguard.observe.tools.written_lines import find_alias

_CALLS = 32  # of a place
_MOST_CLASSES = 1000  # whose names stand in a list
_NAMES_OF_CLASSES = {"tag", "tags", "label", "labels", "class", "classes", "category", "categories"}
_ENDS = {"eos", "eot"}
_NO_CLASS = {
    *("pad", "padding", "ignore", "ignored", "void", "mask", "masked", "blank", "null", "none"),
    *("unlabeled", "unlabelled", "unknown", "unk", "background", "bg", "other", "na", "nan"),
}


@dataclass(slots=True)
class _Ignored:
    """
    The calls of one place.

    name: of the class that is ignored. ends: whether that is the end of a sequence.
    alias: the line that gives its number to another variable, too.
    left_out, is_certain: numbers, on an accelerator tensors that are fetched at the end.
    """

    name: str
    ends: bool
    alias: str = ""
    calls: int = 0
    left_out: Any = 0
    of: int = 0
    is_certain: Any = True


class IgnoredClasses(Watcher):
    """
    The Probe event "ignored": targets that are left out though their class has a name.

    The end of a sequence is one where the longest sequence of each batch has it as well: there it
    fills up nothing.
    """

    makes = ("Probe:ignored",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[str, _Ignored | None] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, own in self._places.items():
            if own is not None and own.left_out and own.is_certain:
                yield make_probe("ignored", own.left_out, own.of, label=own.name, source=source)
                if own.alias:
                    yield Origin(name="ignored class", source=own.alias)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Count the targets that a loss leaves out."""
        number = tally.ignored
        if tally.function not in CROSS_ENTROPIES or number < 0 or not value.requires_grad:
            return
        if tally.source not in self._places:
            count = scores.shape[1] if scores.dim() > 1 else 0
            self.looked.add("ignored")
            self._places[tally.source] = _begin(number, count)
        own = self._places[tally.source]
        if own is None or own.calls >= _CALLS or target.is_floating_point():
            return
        own.calls += 1
        own.left_out = own.left_out + (target == number).sum()
        own.of += target.numel()
        if own.ends:
            rows = target if target.dim() == 2 else target._base  # noqa: SLF001 before it was flat
            able = rows is not None and rows.dim() == 2 and rows.numel() == target.numel()
            own.is_certain = own.is_certain & (rows[:, -1] == number).all() if able else False


def _begin(number: int, count: int) -> _Ignored | None:
    """Return what is known of a class by the user's names; None if it stands for nothing."""
    frame = user_frame(sys._getframe(2))  # noqa: SLF001 the one way to look at callers
    if frame is None or number >= count or count > _MOST_CLASSES:
        return None
    variables = {**frame.f_globals, **variables_of(frame)}
    known = dict(variables)
    for owner in (variables.get("self"), *_modules_of(variables)):
        known |= vars(owner) if hasattr(owner, "__dict__") else {}
    names = list(_names_of(number, count, known))
    if any(not words_of(n) or not _NO_CLASS.isdisjoint(words_of(n)) for n in names):
        return None
    if names:
        return _Ignored(names[0], ends=False)
    ends = [k for k, v in known.items() if type(v) is int and v == number and _is_end(k)]
    alias = find_alias(frame.f_code.co_filename, ends[0]) if ends else ""
    return _Ignored(ends[0], ends=True, alias=alias) if ends else None


def _modules_of(variables: Mapping[str, Any]) -> list[nn.Module]:
    """Return the few modules that have a name, which may know names of classes."""
    return [v for v in list(variables.values()) if isinstance(v, nn.Module)][:4]


def _is_end(name: str) -> bool:
    """Say whether a variable is called the end of a sequence."""
    return not _ENDS.isdisjoint(words_of(name))


def _names_of(number: int, count: int, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield what lists or dictionaries of so many classes call one of them."""
    for name, value in list(known.items()):
        if _NAMES_OF_CLASSES.isdisjoint(words_of(name)):
            continue
        if isinstance(value, list | tuple) and len(value) == count:
            yield from [each for each in [value[number]] if isinstance(each, str)]
        elif type(value) is dict and len(value) == count:
            if isinstance(value.get(number), str):
                yield value[number]
            yield from [k for k, v in value.items() if isinstance(k, str) and v is number]
