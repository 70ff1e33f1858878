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
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_FEW = 16  # rows: in a pass with fewer an agent acts, from one with as many it learns
_JUDGED = 32  # batches of the run
_KEPT = 8192  # states that are taken down: what acts on more has learned, or never does
_ALIKE = 4  # times as many rows as states: batches drawn with repetition have more of these
_WAITING = 8  # passes of a step
_EPISODES = 8  # that begin alike: fewer seeds may agree by chance
_LEARNED = 3  # batches that have the state they begin with
_NEAR = 0.1  # of the episodes: the last of a rollout may be cut off


@dataclass(slots=True)
class _Agent:
    """
    What a module was asked about, a few rows at a time, and what it learned from.

    acted, rows: the states that it acted on, and how many times. latest: those before it last began
    to learn. learns: whether it does so now.
    batches, alike: all that it learned from after so many states, and those with hardly any states.
    fresh: of these, the ones before which it acted on half as many states as they have rows.
    seen: in how many batches each state was. seeds: the generators made by the time that no more
    states were taken down.
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
    seeds: Counter[Seed] | None = None

    def act(self, rows: list[int]) -> None:
        """Take down states that were acted on."""
        if self.learns:
            self.latest.clear()
        self.learns = False
        self.rows += len(rows)
        self.acted.update(rows)
        self.latest.update(rows)

    def learn(self, rows: list[int], source: str) -> None:
        """Judge a batch, where as many states were acted on, and those were mostly different."""
        self.learns = True
        self.seen.update(set(rows))
        if len(self.acted) < len(rows) or 2 * len(self.acted) < self.rows:
            return
        self.batches += 1
        states, fresh = len(set(rows)), 2 * len(self.latest) >= len(rows)
        # What it has just acted on may be repeated on purpose, for several actions.
        if _ALIKE * states <= len(rows) and (fresh or states > len(self.latest)):
            self.alike += 1
            self.fresh += fresh
            self.source = source


class ActedStates(Watcher):
    """
    The Probe event "acted": batches with hardly any states, learned from after acting on many.

    The same module was given a few rows at a time, beginning before it first learned. Of several
    passes that a step learns from, the one with the most states counts.

    The Probe event "alike starts": a state that was acted on as often as a line made a generator
    from one seed, and learned from; step: how many other seeds that line has made some from.
    """

    makes = ("Probe:acted", "Probe:alike starts")
    relies_on = ("SeededGenerators",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._agents: defaultdict[str, _Agent] = defaultdict(_Agent)
        self._others: set[str] = set()  # modules that learned before they were asked
        self._waiting: deque[tuple[Forward, list[int], str]] = deque(maxlen=_WAITING)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what a pass is given: a few states, or a batch."""
        known = self._agents.get(forward.module)
        if forward.module in self._others:
            return
        if known is not None and (known.batches >= _JUDGED or known.rows >= _KEPT):
            known.seeds = known.seeds or self._made.copy()
            if known.batches >= _JUDGED:
                return
        given = self.recorder.given[0] if self.recorder.given else None
        if given is None or not given.is_cpu or not has_rows(given) or given.is_complex():
            return
        rows = given[None] if given.dim() == 1 else given
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            if len(rows) < _FEW and rows.is_floating_point():
                if known is None or known.rows < _KEPT:
                    self._agents[forward.module].act(hash_rows(rows))
            elif forward.gradients and known is None:
                self._others.add(forward.module)
            elif forward.gradients and known is not None:
                self._waiting.append((forward, hash_rows(rows), caller()))

    def before_step(self, window: Window) -> Columns:
        """Judge what is learned from: of each module, the pass with the most states."""
        learned: dict[str, tuple[list[int], str]] = {}
        for forward, rows, source in self._waiting:
            most = learned.get(forward.module, ([], ""))[0]
            if forward.learned and len(set(rows)) > len(set(most)):
                learned[forward.module] = rows, source
        self._waiting.clear()
        for name, (rows, source) in learned.items():
            self._agents[name].learn(rows, source)
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

    @property
    def _made(self) -> Counter[Seed]:
        """The generators that were made so far."""
        return self.recorder.watcher(SeededGenerators).made

    def _find_starts(self, name: str, own: _Agent) -> Iterable[Event]:
        """Find the state that episodes begin with, where all are made from one seed."""
        learned = [state for state, batches in own.seen.items() if batches >= _LEARNED]
        self.looked |= {"alike starts"} if learned and self._made else set()
        times = max((own.acted[state] for state in learned), default=0)
        seeds = self._made if own.seeds is None else own.seeds
        for (line, seed), made in seeds.items():
            if times >= _EPISODES and abs(made - times) <= _NEAR * times:
                others = sum(other[0] == line and other[1] != seed for other in seeds)
                label = f"{name}\n{seed}"
                yield make_probe("alike starts", made, times, step=others, label=label, source=line)
                return
