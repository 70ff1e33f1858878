"""Watches the numbers of samples that loaders serve: whether what is evaluated is learned, too."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.events.ranks import SplitSamples
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.groups import is_one_of_several
from trainguard.observe.tools.indexed_samples import DataSets, IndexedSamples, find_followed
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_PASSES = 4096  # through loaders: what comes after them is left out
_INDICES = 2**22  # that are kept of all of them: each epoch may be of others
_WAITING = 64  # passes of a module that may still learn
_FOLLOWED = 256  # samples of a data set, in processes of several


@dataclass(slots=True)
class _Learner:
    """
    The passes through loaders that a module has learned from, and those that evaluate it.

    evaluated: with the line of the evaluation. unknown: whether it was evaluated on other samples
    than those of a loader of their own.
    """

    trained: set[int] = field(default_factory=set)
    evaluated: dict[int, str] = field(default_factory=dict)
    unknown: bool = False


class SharedIndices(Watcher):
    """
    The Probe event "shared indices": samples of an evaluation that its module has learned from.

    They are known by their numbers in a data set, whatever an augmentation makes of them. measured,
    reference: how many of them, of all that are evaluated. And the SplitSamples events, of a
    process that is one of several.
    """

    makes = ("Probe:shared indices", "SplitSamples")
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._is_one_of_several = is_one_of_several()
        self._data_sets = DataSets()
        self._passes: dict[int, IndexedSamples | None] = {}
        self._different: list[IndexedSamples] = []  # among them
        self._learners: dict[str, _Learner] = {}
        self._others: set[int] = set()  # turns of passes that other modules were evaluated in
        self._waiting: deque[tuple[Forward, int]] = deque(maxlen=_WAITING)

    def install(self, patches: Patches) -> None:
        """Ask to be told of the first batch of each pass."""
        self._batches = self.recorder.watcher(Batches)
        self._batches.at_pass.append(self._begin)

    @shielded
    def _begin(self, iterator: Any, served: ServedBatch) -> None:
        """Take down which samples a pass serves."""
        if len(self._passes) >= _PASSES:
            return
        found = None
        with suppress(Exception):  # a data set of the user's raises what it likes
            found = self._data_sets.find(iterator._dataset, iterator._index_sampler)  # noqa: SLF001
        if found is not None:
            found = self._keep(found)
        self._passes[served.turn] = found

    def _keep(self, found: IndexedSamples) -> IndexedSamples | None:
        """Return what is kept of some samples, once for all passes of them, as long as it fits."""
        for each in self._different:
            if each.is_as(found):
                return each
        if sum(len(each.indices) for each in self._different) + len(found.indices) > _INDICES:
            return None
        self._different.append(found)
        return found

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down of which pass the samples are that a module is given."""
        recent = self._batches.recent
        turn = recent[-1].turn if recent else 0
        if turn and turn not in self._passes:
            return
        own = self._learners.get(forward.module)
        if forward.gradients:
            self._waiting.append((forward, turn))
        elif own is None:
            self._others.add(turn)
        elif turn in own.trained:
            own.unknown = True
        elif turn not in own.evaluated:
            own.evaluated[turn] = caller()

    def before_step(self, window: Window) -> Columns:
        """Take down the passes that are learned from."""
        for forward, turn in self._waiting:
            if forward.learned:
                self._learners.setdefault(forward.module, _Learner()).trained.add(turn)
        self._waiting.clear()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what is found first, and what other processes are to know of the split."""
        found = [probe for own in self._learners.values() for probe in self._compare(own)]
        yield from found[:1]
        if self._is_one_of_several:
            for own in self._learners.values():
                yield from self._tell_split(own)

    def _tell_split(self, own: _Learner) -> Iterable[Event]:
        """Yield which of some samples are learned from and held out, of each data set."""
        line = next(iter(own.evaluated.values()), "")
        turns = own.trained, own.evaluated.keys() - own.trained
        learned, evaluated = ([self._passes.get(turn) for turn in side] for side in turns)
        known = [each for each in (*learned, *evaluated) if each is not None and each.mark]
        for mark, rows in {(each.mark, each.rows): None for each in known}:
            followed = find_followed(rows, _FOLLOWED)
            sides = [_follow(followed, mark, served) for served in (learned, evaluated)]
            yield SplitSamples(data=mark, learned=sides[0], evaluated=sides[1], source=line)

    def _compare(self, own: _Learner) -> Iterable[Event]:
        """
        Yield a probe for each evaluation that is made on samples which are learned from.

        A training that goes on with other samples, such as those of another fold, tells nothing.
        Where two data sets share a table they perhaps make other samples of its rows, but hardly of
        some of them alone. And part of what is learned from may be evaluated on purpose, beside
        what is held out.
        """
        trained = [self._passes.get(turn) for turn in own.trained]
        learned = trained[0] if trained else None
        if learned is None or not all(each and each.is_as(learned) for each in trained):
            return
        size, inside = len(learned.indices), not own.unknown
        turns = {**dict.fromkeys(self._others, ""), **own.evaluated}
        overlaps = []
        for turn in turns.keys() - own.trained:
            samples = self._passes.get(turn)
            if samples is None:
                inside = False
                continue
            self.looked.add("shared indices")
            both, rows = samples.count(learned), len(samples.indices)
            inside &= samples.number == learned.number and both == rows < size
            overlaps.append((both, rows, turns[turn]))
        for both, rows, line in overlaps:
            if line and (inside or 0 < both < min(rows, size)):
                yield make_probe("shared indices", both, rows, source=line)


def _follow(followed: Sequence[int], mark: str, served: Iterable[IndexedSamples | None]) -> str:
    """Write for each of some samples of a data set whether it is served."""
    every = {id(each): each for each in served if each is not None and each.mark == mark}
    places = set[int]().union(*(each.indices.tolist() for each in every.values()))
    return "".join(str(int(place in places)) for place in followed)
