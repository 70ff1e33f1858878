"""Watches what the groups of an optimizer are made with: their rates, and how they average."""

import linecache
import re
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import NAdam, Optimizer, RAdam

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import (
    Columns,
    Watcher,
    make_probe,
    now_and_then,
    shielded,
)
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

# Those of torch that divide an average of gradients by the root of one of their squares.
_DIVIDE: tuple[type[Optimizer], ...] = (torch.optim.Adam, torch.optim.AdamW, NAdam, RAdam)
_NAMES = ("lr", "learning_rate")
_NOT_OWN = {"params", "param_names", "name", "initial_lr"}  # keys that say nothing of a rate
_FIRST_ALONE = re.compile(r"^[^#]*param_groups\[0\]\[.lr.\]\s*[*/]?=[^=]")


class GroupSettings(Watcher):
    """
    The Probe events "group rates": the rates that an optimizer of several groups was made with.

    measured: the highest, reference: the lowest; step: 1 where a line of the file that makes it
        sets the rate of its first group alone, -1 where groups have keys that torch does not know,
        by which a formula may tell them apart; label: the optimizer.

    And the Probe events "betas", of optimizers of torch that adapt, where that of the gradients
    (measured) is the larger one, beside that of their squares (reference).

    And the Probe events "unread setting": the rate (measured) that an attribute, a default or a key
    (label) of an optimizer of torch has, where nothing reads it, and the one in force (reference).
    """

    makes = ("Probe:group rates", "Probe:betas", "Probe:unread setting")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._made: weakref.WeakKeyDictionary[Optimizer, tuple[list[Any], str]] = (
            weakref.WeakKeyDictionary()
        )
        self._told_apart: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._default: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
        self._unread: dict[str, tuple[float, float, str]] = {}
        self._rates: dict[str, tuple[list[float], str, bool]] = {}
        self._betas: dict[str, tuple[float, float, str]] = {}

    def install(self, patches: Patches) -> None:
        """Listen to optimizers that are made."""
        patches.replace(Optimizer, "__init__", tell_after(self._see_made))

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Take down what the groups were made with, once the optimizer steps."""
        optimizer = None if window.optimizer is None else window.optimizer()
        if optimizer is None or not window.name:
            return {}
        rates, source = self._made.get(optimizer, ([], ""))
        numbers = [rate for rate in rates if isinstance(rate, int | float)]
        if len(numbers) == len(optimizer.param_groups) > 1:
            self._rates[window.name] = numbers, source, optimizer in self._told_apart
        self._look_for_unread(optimizer)
        for place, group in enumerate(optimizer.param_groups):
            betas = [beta for beta in group.get("betas", ()) if isinstance(beta, int | float)]
            if isinstance(optimizer, _DIVIDE) and len(betas) == 2:
                self.looked.add("betas")
                first, second = betas
                if first > second:
                    self._betas.setdefault(f"{window.name}, group {place}", (first, second, source))
        return {}

    def _look_for_unread(self, optimizer: Optimizer) -> None:
        """Take down rates that an optimizer of torch does not read."""
        if type(optimizer).__module__.startswith("torch.optim"):
            self.looked.add("unread setting")
            _, source = self._made.get(optimizer, ([], ""))
            for label, rate, used in _unread_rates(optimizer, self._default.get(optimizer)):
                self._unread.setdefault(f"{type(optimizer).__name__}{label}", (rate, used, source))

    def finish(self) -> Iterable[Event]:
        """Return what was taken down."""
        for optimizer in list(self._default):  # of those that are still there, at the end too
            self._look_for_unread(optimizer)
        for name, (rates, source, told_apart) in self._rates.items():
            step = -1 if told_apart else int(_sets_first_alone(source))
            yield make_probe(
                "group rates", max(rates), min(rates), label=name, source=source, step=step
            )
        for name, (first, second, source) in self._betas.items():
            yield make_probe("betas", first, second, label=name, source=source)
        for label, (rate, used, source) in self._unread.items():
            yield make_probe("unread setting", rate, used, label=label, source=source)

    @shielded
    def _see_made(self, _: None, optimizer: Optimizer, /, *__: Any, **___: Any) -> None:
        """Take down the rates of a new optimizer, before a scheduler changes them."""
        rates = [group.get("lr") for group in optimizer.param_groups]
        self._made[optimizer] = rates, caller()
        known = _NOT_OWN | set(optimizer.defaults)
        if any(set(group) - known for group in optimizer.param_groups):
            self._told_apart.add(optimizer)
        self._default[optimizer] = optimizer.defaults.get("lr")


def _unread_rates(optimizer: Optimizer, made: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield rates that an optimizer has where it reads none: how each is set, it, that in force."""
    groups = optimizer.param_groups
    used = groups[0].get("lr")
    set_later = vars(optimizer).get("lr"), vars(optimizer).get("learning_rate")
    found = [(f".{name}", rate) for name, rate in zip(_NAMES, set_later, strict=True)]
    default = optimizer.defaults.get("lr")
    changed = _are_rates(default, made) and default != made  # a tensor would be waited for
    found += [('.defaults["lr"]', default)] if changed else []
    for label, rate in found:
        if _are_rates(rate, used) and all(group.get("lr") != rate for group in groups):
            yield label, rate, used
    for place, group in enumerate(groups):
        rate, own = group.get(_NAMES[1]), group.get("lr")
        if _are_rates(rate, own) and own == group.get("initial_lr", own) == default != rate:
            yield f'.param_groups[{place}]["{_NAMES[1]}"]', rate, own


def _are_rates(*values: Any) -> bool:
    """Say whether these are numbers."""
    return all(isinstance(value, int | float) for value in values)


def _sets_first_alone(source: str) -> bool:
    """Say whether a line of the file of a `file:line` sets the rate of a first group alone."""
    lines = linecache.getlines(source.rpartition(":")[0])
    return any(_FIRST_ALONE.match(line) for line in lines)
