"""Watches agents that act on many different states, and learn from hardly any."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.runs.seeded_generators import Seed, SeededGenerators
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.local_values import has_rows, start_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_FEW = 16  # rows: in a pass with fewer an agent acts, from one with as many it learns
_JUDGED = 32  # batches of the run
_KEPT = 8192  # states that are taken down: what acts on more has learned, or never does
_ALIKE = 4  # times as many rows as states: batches drawn with repetition have more of these
_WAITING = 8  # passes of a step
_EPISODES = 8  # that begin alike: fewer seeds may agree by chance
_LEARNED = 3  # batches that have the state they begin with
_SHARE = 0.25  # of the episodes: in the others chance acts first, or the first states are not seen
_SEEDS = 4096  # of which the first states are taken down


@dataclass(slots=True)
class _Agent:
    """
    What a module was asked about, a few rows at a time, and what it learned from.

    acted, rows: the states that it acted on, and how many times. latest: those before it last began
    to learn. learns: whether it does so now.
    batches, alike: all that it learned from after so many states, and those with hardly any states.
    fresh: of these, the ones before which it acted on half as many states as they have rows.
    seen: in how many batches each state was. generators: how many had been made when it last acted.
    starts: the states that it acted on first after a line made a generator from a seed.
    is_late: whether it learned before it was asked, as where chance acts first.
    """

    acted: Counter[int] = field(default_factory=Counter)
    rows: int = 0
    latest: set[int] = field(default_factory=set)
    learns: bool = False
    batches: int = 0
    alike: int = 0
    fresh: int = 0
    source: str = ""
    seen: Counter[int] = field(default_factory=Counter)
    generators: int = 0
    starts: dict[Seed, Counter[int]] = field(default_factory=dict)
    is_late: bool = False

    def act(self, rows: list[int], made: SeededGenerators) -> None:
        """Take down states that were acted on, the first ones after a generator was made."""
        if made.count != self.generators and len(self.starts) < _SEEDS:
            self.starts.setdefault(made.latest, Counter()).update(set(rows))
        self.generators = made.count
        if self.learns:
            self.latest.clear()
        self.learns = False
        self.rows += len(rows)
        self.acted.update(rows)
        self.latest.update(rows)

    def learn(self, rows: list[int], source: str, *, stays: bool) -> None:
        """
        Judge a batch, where as many states were acted on, and those were mostly different.

        stays: whether what follows is the very same states, so that these are no repeated ones.
        """
        self.learns = True
        self.seen.update(set(rows))
        if len(self.acted) < len(rows) or 2 * len(self.acted) < self.rows:
            return
        self.batches += 1
        # Of what learned before, hardly anything is known: it may be no agent, but a model.
        states, fresh = len(set(rows)), not self.is_late and 2 * len(self.latest) >= len(rows)
        least = _ALIKE * _ALIKE if self.is_late else _ALIKE
        # What it has just acted on may be repeated on purpose, for several actions.
        meant = not (self.is_late or fresh or stays) and states <= len(self.latest)
        if least * states <= len(rows) and not meant:
            self.alike += 1
            self.fresh += fresh
            self.source = source


class ActedStates(Watcher):
    """
    The Probe event "acted": batches with hardly any states, learned from after acting on many.

    The same module was given a few rows at a time, mostly before it first learned. Of several
    passes that a step learns from, the one with the most states counts.

    The Probe event "alike starts": a state that was acted on first when a line had made a generator
    from one seed, again and again, that no other seed begins with, and that was learned from;
    measured: how often, reference: of how many times; step: the other seeds of that line.
    """

    makes = ("Probe:acted", "Probe:alike starts")
    relies_on = ("SeededGenerators",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._agents: defaultdict[str, _Agent] = defaultdict(_Agent)
        self._waiting: deque[tuple[Forward, list[int], str]] = deque(maxlen=_WAITING)
        self._asked: deque[tuple[int, list[int]]] = deque(maxlen=_WAITING)  # without a graph
        self._places: set[int] = set()  # of the tables learned from since something was acted on

    def install(self, patches: Patches) -> None:
        """Ask what generators are made."""
        self._generators: SeededGenerators = self.recorder.watcher(SeededGenerators)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what a pass is given: a few states, or a batch."""
        known = self._agents.get(forward.module)
        if known is not None and known.batches >= _JUDGED:
            return
        given = self.recorder.given[0] if self.recorder.given else None
        if given is None or not given.is_cpu or not has_rows(given) or given.is_complex():
            return
        rows = given[None] if given.dim() == 1 else given
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            if len(rows) < _FEW and rows.is_floating_point():
                if known is None or known.rows < _KEPT:
                    self._agents[forward.module].act(hash_rows(rows), self._generators)
                self._places.clear()
            elif forward.gradients and known is None:
                self._agents[forward.module].is_late = True
            elif (
                forward.gradients
                and known is not None
                and (not known.is_late or len(known.acted) >= len(rows))
            ):
                self._waiting.append((forward, hash_rows(rows), caller()))
                self._places.add(start_of(rows))
            elif not forward.gradients and any(
                own.batches < _JUDGED and len(own.acted) >= len(rows)
                for own in self._agents.values()
            ):
                self._asked.append((start_of(rows), hash_rows(rows)))

    def before_step(self, window: Window) -> Columns:
        """Judge what is learned from: of each module, the pass with the most states."""
        learned: dict[str, tuple[list[int], str]] = {}
        for forward, rows, source in self._waiting:
            most = learned.get(forward.module, ([], ""))[0]
            if forward.learned and len(set(rows)) > len(set(most)):
                learned[forward.module] = rows, source
        others = [rows for place, rows in self._asked if place not in self._places]
        self._waiting.clear()
        for name, (rows, source) in learned.items():
            self._agents[name].learn(rows, source, stays=rows in others)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found of the first agent."""
        self.looked |= {"acted"} if any(own.batches for own in self._agents.values()) else set()
        for name, own in self._agents.items():
            if own.alike:
                yield make_probe(
                    "acted", own.alike, own.batches, step=own.fresh, label=name, source=own.source
                )
            yield from self._find_starts(name, own)

    def _find_starts(self, name: str, own: _Agent) -> Iterable[Event]:
        """Find a state that episodes begin with, where a line makes all of them from one seed."""
        learned = {state for state, batches in own.seen.items() if batches >= _LEARNED}
        self.looked |= {"alike starts"} if learned and own.starts else set()
        for seed, states in own.starts.items():
            state, times = states.most_common(1)[0]
            others = [
                each for other, each in own.starts.items() if other[0] == seed[0] and other != seed
            ]
            often = times >= max(_EPISODES, _SHARE * states.total())
            if often and state in learned and not any(state in each for each in others):
                named = {"step": len(others), "label": f"{name}\n{seed[1]}", "source": seed[0]}
                yield make_probe("alike starts", times, states.total(), **named)
                return
