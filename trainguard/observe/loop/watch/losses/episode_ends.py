"""Watches returns over several episodes: whether one reaches into the episode that follows."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.least_squares import Table, fit_columns
from trainguard.observe.tools.named_numbers import REWARDS, find_numbers
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256}  # that are looked at
_SHORTEST, _LARGEST = 16, 1 << 14  # numbers of a rollout
_ENDS = {"d", "done", "dones", "terminal", "terminals", "terminated", "ends", "mask", "masks"}
_ENDS |= {"nonterminal", "nonterminals", "alive"}  # of which most are true
_VALUES = {"v", "val", "vals", "value", "values"}
_APART = {"int", "intrinsic", "bonus", "curiosity"}  # rewards that are meant to outlive episodes
_LEAST_ENDS = 4  # of episodes in a rollout, and two more than there are factors
_EXACT = 1e-4  # of a deviation: the rounding of float32
_DISCOUNTS = (0.3, 1 + _EXACT)  # from one step to the one before, the factor of GAE with it
_LESS_THAN_ONE = 0.9999  # where all rewards are equal: numbers that count steps are no returns
_FIRST = 256
_TELLS = 0.01  # of a deviation, in what follows ends and nothing else tells
_MOST = 12  # tables that may be returns

Rollout = dict[str, list[tuple[str, Table]]]  # named tables, by what their names say


class EpisodeEnds(Watcher):
    """
    The Probe event "ends passed": returns that are made of rewards after the end of an episode.

    measured: how many tables of returns do so, reference: of how many that are known to be returns.
    A table is one of returns where each number is a discount times the next one, its reward, and,
    for advantages, the values of the two states, with factors that are the same everywhere: at the
    ends of episodes too, or with nothing of the next one there.
    """

    makes = ("Probe:ends passed",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known = self._passed = self._ends = 0
        self._name = self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for returns in the variables of the functions that learn from them."""
        if self.recorder.age not in _STEPS:
            return
        rollout = _sort(find_numbers(_SHORTEST, _LARGEST))
        known: dict[str, bool] = {}
        count = 0
        for _, rewards in rollout["rewards"]:
            for _, ends in rollout["ends"]:
                if ends.shape == rewards.shape and ends[:-1].sum() >= _LEAST_ENDS:
                    count = max(count, int(ends[:-1].sum()))
                    known.update(_find_returns(rewards, ends, rollout))
        self._known += bool(known)
        # Where other returns end with their episodes, those that do not are meant so.
        if known and all(known.values()):
            self._passed += 1
            self._ends = max(self._ends, count)
            self._name, self._source = min(known), self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return how many reached on."""
        if self._known:
            self.looked.add("ends passed")
            named = {"label": self._name, "step": self._ends, "source": self._source}
            yield make_probe("ends passed", self._passed, self._known, **named)


def _sort(numbers: Iterator[tuple[str, Table]]) -> Rollout:
    """Return tables of one row for each step in time by what their names say, each once."""
    rollout: Rollout = {"rewards": [], "ends": [], "values": [], "others": []}
    seen = set[tuple[str, bytes]]()
    for name, table in numbers:
        kind = _kind_of(words_in(name))
        table = table[..., 0] if table.ndim > 1 and table.shape[-1] == 1 else table
        table = table if table.ndim == 2 else table.reshape(len(table), -1)
        if kind == "ends":
            if not np.isin(table, (0.0, 1.0)).all():
                continue
            table = 1.0 - table if table.mean() > 0.5 else table
        if (kind, table.tobytes()) not in seen:
            seen.add((kind, table.tobytes()))
            rollout[kind].append((name, table))
    return rollout


def _kind_of(words: set[str]) -> str:
    """Return what a table is, by the words of its name."""
    if words & REWARDS and not words & _APART:
        return "rewards"
    return "ends" if words & _ENDS else "values" if words & _VALUES else "others"


def _find_returns(rewards: Table, ends: Table, rollout: Rollout) -> dict[str, bool]:
    """Return the names of the tables that are returns of rewards, and whether they reach on."""
    values = [table for _, table in rollout["values"] if table.shape == rewards.shape][:2]
    some = rollout["others"] + rollout["values"]
    shaped = [(name, _reshape(table, rewards)) for name, table in some]
    alike = [pair for pair in shaped if pair[1].shape == rewards.shape][:_MOST]
    judged = {name: _reaches_on(table, rewards, ends, values) for name, table in alike}
    return {name: reaches for name, reaches in judged.items() if reaches is not None}


def _reshape(table: Table, rewards: Table) -> Table:
    """Return numbers that were put into one row, step by step, as rewards have them."""
    is_flat = table.ndim == 2 and table.shape[1] == 1 < rewards.shape[1]
    return table.reshape(rewards.shape) if is_flat and table.size == rewards.size else table


def _reaches_on(returns: Table, rewards: Table, ends: Table, values: list[Table]) -> bool | None:
    """Say whether returns are made of what comes after ends too; nothing where they are none."""
    spread = float(np.std(returns))
    if spread == 0 or np.array_equal(returns, rewards):
        return None
    for value in [None, *values]:
        if _fits(returns, rewards, np.zeros_like(ends), value, spread):
            later = _columns(returns, rewards, np.zeros_like(ends), value)
            return True if _is_told(later, ends, spread) else None
        # Flags of the step that ends an episode, and of the one that begins the next.
        flags = ends[:-1], ends[1:]
        if any(_fits(returns, rewards, stops, value, spread) for stops in flags):
            return False
        # The values of next states may be cut, and what is added up over the steps not.
        halves = flags if value is not None else ()
        if any(_fits(returns, rewards, stops, value, spread, half=True) for stops in halves):
            return True
    return None


def _fits(
    returns: Table,
    rewards: Table,
    stops: Table,
    value: Table | None,
    spread: float,
    *,
    half: bool = False,
) -> bool:
    """Say whether each number is made of the next one, but where the steps stop; half: is, too."""
    columns = _columns(returns, rewards, np.zeros_like(stops) if half else stops, value)
    if half and value is not None:
        cut = (1.0 - stops[: len(rewards) - 1]) * value[1:]
        columns = np.column_stack([columns, cut.reshape(-1)])
    wanted = returns[:-1].reshape(-1)
    for rows in (_FIRST, len(wanted)):  # most tables are known not to be returns by few rows
        factors, rest = fit_columns(columns[:rows], wanted[:rows])
        if rest > _EXACT * spread:
            return False
    low, high = _DISCOUNTS
    discount, share = float(factors[0]), abs(float(factors[1])) * float(np.std(rewards))
    if np.ptp(rewards) == 0:
        return low <= discount <= _LESS_THAN_ONE
    return low <= discount <= high and share > _EXACT * spread


def _columns(returns: Table, rewards: Table, stops: Table, value: Table | None) -> Table:
    """Return what a return may be made of: (steps, columns), the next one in the first."""
    goes_on = 1.0 - stops[: len(rewards) - 1]
    made = [goes_on * returns[1:], rewards[:-1]]
    made += [goes_on] if stops.any() else []
    made += [goes_on * value[1:], value[:-1]] if value is not None else []
    return np.column_stack([each.reshape(-1) for each in made])


def _is_told(columns: Table, ends: Table, spread: float) -> bool:
    """Say whether at ends the next return is nothing that the other columns tell."""
    for stops in (ends[:-1], ends[1:]):
        at = columns[stops.reshape(-1) > 0]
        rest = fit_columns(at[:, 1:], at[:, 0])[1] if len(at) >= at.shape[1] + 2 else 0.0
        if rest <= _TELLS * spread:
            return False
    return True
