"""
The probe of a resume: save a loader within an epoch, build it anew, load it, and go on.

Serving events, `at` the place of the save, `detail` what is wrong, nothing where all is well:
"state": the state cannot be saved or loaded; `detail` is what was raised.
"rest": how many batches of the rest of the epoch came as without the interruption, of how many.
"next": the batches of the epoch after it, `reference` as without the interruption.

Whether a checkpoint restores the global generators is the training's affair. A loader is right if
it goes on with the generators as they stood at the save, before or after its iterator is made, or
as at the start of a process.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from trainguard.core.errors import SubjectError, Unjudged, is_ours
from trainguard.events.loader import Serving
from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.loader.iterate import record_draws, serving, told_length
from trainguard.observe.loader.layout import laid_out, read
from trainguard.observe.loader.reachable_state import reachable
from trainguard.observe.loader.splits import Loaders, is_train, parts_of, set_epoch
from trainguard.observe.tools.isolation import read_streams, seed_everything, write_streams

_ENDLESS = 30  # batches
_MOST = 400
_EPOCHS = 3
_METHODS = ("state_dict", "load_state_dict")
_SHORTEST = 3  # batches of an epoch that can be interrupted
_BEYOND = 2  # batches that are looked for after the end of the epoch


class ServedEpoch(NamedTuple):
    """What was served of an epoch: a print of each batch, and the indices drawn for each."""

    batches: list[int]
    indices: list[tuple[int, ...]]
    complete: bool


def resume(loaders: Loaders, case: int) -> Iterator[Serving]:
    """Yield how each split that is trained on goes on after a resume."""
    if not loaders.fresh:
        raise Unjudged(
            "what is given cannot be built anew: pass the function that makes the loader"
        )
    for split in loaders.make():
        if is_train(split) or loaders.subject.options.get(split, {}).get("shuffled"):
            for event in _Interruption(loaders, split).events():
                yield replace(event, case=case)


def _stateful(loader: Any) -> Any:
    """Return the part of a loader that has a state, or None."""
    found = (p for p in parts_of(loader) if all(callable(getattr(p, m, None)) for m in _METHODS))
    return next(found, None)


class _Stateless(Exception):
    """A loader has no state where one is promised, or it does not take it."""


@dataclass
class _Interruption:
    """
    A run that is saved, and the runs that go on from there.

    watched: whether what the sampler draws is written down. Samplers with a state of their own do
    not bear that, so it is done only where the samples themselves cannot be told apart.
    """

    loaders: Loaders
    split: str
    watched: bool = False

    def events(self) -> list[Serving]:
        """Return what becomes of a save in the first epoch, and of one in the second."""
        events = list(self.interrupt())
        if not any(event.detail for event in events) or not self._is_random():
            return events
        if type(_dataloader(self._make())) is not DataLoader:
            raise Unjudged("the samples are drawn at random, so they cannot be told apart here")
        return list(replace(self, watched=True).interrupt())

    def interrupt(self) -> Iterator[Serving]:
        """Save in the first epoch and in the second, and go on from there."""
        whole = self._serve_whole()
        for epoch, share in ((0, 2), (1, 3)):
            if epoch >= len(whole) or len(whole[epoch].batches) < _SHORTEST:
                continue
            place = len(whole[epoch].batches) // share
            try:
                yield from self._resume(whole, epoch, place)
            except _Stateless as why:
                yield Serving(quantity="state", split=self.split, detail=str(why),
                              at=f"epoch {epoch}, after batch {place - 1}")  # fmt: skip
                return

    def _serve_whole(self) -> list[ServedEpoch]:
        """Serve a few epochs without an interruption; a stream without an end is one."""
        loader, whole = self._make(), []
        for epoch in range(_EPOCHS):
            whole.append(self._epoch(loader, epoch))
            if not whole[-1].complete:
                break
        return whole

    def _resume(self, whole: list[ServedEpoch], epoch: int, place: int) -> Iterator[Serving]:
        """Save in an epoch, go on in a loader that is built anew, and compare."""
        state, streams = self._save(epoch, place)
        whole_epoch = whole[epoch]
        most = len(whole_epoch.batches) - place + (_BEYOND if whole_epoch.complete else 0)
        told: list[Serving] = []
        for when in ("before", "after", "never"):
            loader = self._make()
            self._load(loader, state)
            rest = self._epoch(loader, epoch, streams, when, most)
            told.append(self._compare(whole_epoch, place, rest))
            if not told[-1].detail:
                break
        at = f"epoch {epoch}, after batch {place - 1}"
        shown = told[-1] if not told[-1].detail else told[0]
        yield replace(shown, at=at)
        if not shown.detail and rest.complete and epoch + 1 < len(whole):
            after = len(self._epoch(loader, epoch + 1).batches)
            length = len(whole[epoch + 1].batches)
            yield Serving(quantity="next", split=self.split, at=at, measured=after,
                          reference=length, detail="length" if after != length else "")  # fmt: skip

    def _compare(self, whole: ServedEpoch, place: int, rest: ServedEpoch) -> Serving:
        """Return how the rest of an epoch compares with what it should have been."""
        expected = whole.batches[place:]
        right = sum(one == other for one, other in zip(rest.batches, expected, strict=False))
        same = rest.batches == expected or self._same_samples(whole, place, rest)
        detail = "" if same else _how(whole.batches, place, rest.batches)
        return Serving(quantity="rest", split=self.split, measured=right,
                       reference=len(expected), detail=detail)  # fmt: skip

    def _same_samples(self, whole: ServedEpoch, place: int, rest: ServedEpoch) -> bool:
        """Say whether the rest of an epoch is made from the indices that it should be made from."""
        expected = whole.indices[place : len(whole.batches)]
        as_many = len(rest.batches) == len(whole.batches) - place
        return as_many and any(expected) and rest.indices[-len(expected) :] == expected

    def _is_random(self) -> bool:
        """Say whether two epochs under two seeds have few samples in common."""
        seen = []
        for seed in (0, 1):
            loader, layout = self._make(), None
            if self.loaders.subject.set_epoch:
                set_epoch(loader, 0)
            seed_everything(self.loaders.seed + seed)
            prints: list[int] = []
            with serving(loader, self.split) as batches:
                for index, raw in enumerate(islice(batches, self._limit_for(loader))):
                    layout = layout or laid_out(self.loaders.subject, self.split, raw)
                    prints += read(raw, layout, index).prints
            seen.append(Counter(prints))
        return bool(2 * (seen[0] & seen[1]).total() < seen[0].total())

    def _make(self) -> Any:
        """Build the loader as at the start of a process."""
        return self.loaders.make()[self.split]

    def _epoch(
        self,
        loader: Any,
        epoch: int,
        streams: dict[str, Any] | None = None,
        when: str = "never",
        most: int | None = None,
    ) -> ServedEpoch:
        """Serve an epoch, the generators being set before or after the iterator is made."""
        if self.loaders.subject.set_epoch:
            set_epoch(loader, epoch)
        if streams is not None and when == "before":
            write_streams(streams)
        bound = most or self._limit_for(loader)
        watched = _dataloader(loader) if self.watched else None
        with record_draws(watched) as draws, serving(loader, self.split) as batches:
            if streams is not None and when == "after":
                write_streams(streams)
            served = [likeness(batch) for batch in islice(batches, bound)]
            complete = len(served) < bound or next(batches, None) is None
            indices = list(draws.draws) if draws is not None else []
        return ServedEpoch(served, indices, complete)

    def _limit_for(self, loader: Any) -> int:
        """Return how many batches of an epoch are looked at."""
        return self.loaders.subject.batches or (_MOST if told_length(loader) >= 0 else _ENDLESS)

    def _save(self, epoch: int, place: int) -> tuple[bytes, dict[str, Any]]:
        """Run up to a place in an epoch, and return the state there and the generators'."""
        loader = self._make()
        for earlier in range(epoch):
            self._epoch(loader, earlier)
        if self.loaders.subject.set_epoch:
            set_epoch(loader, epoch)
        with serving(loader, self.split) as batches:
            for _ in islice(batches, place):
                pass
            save, _ = self._ways(loader)
            return _pickle(_try_state(lambda: save(loader))), read_streams()

    def _load(self, loader: Any, state: bytes) -> None:
        """Give a loader a state that was saved."""
        _, load = self._ways(loader)
        _try_state(lambda: load(loader, pickle.loads(state)))  # noqa: S301 it was made here

    def _ways(self, loader: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the functions that save and load: the given ones, or methods of some part."""
        given = self.loaders.subject.resume
        if isinstance(given, tuple):
            return given
        if _stateful(loader) is not None:
            return (
                lambda loader: _stateful(loader).state_dict(),
                lambda loader, state: _stateful(loader).load_state_dict(state),
            )
        raise SubjectError(
            f"the loader of {self.split!r} is declared to resume, and has no state_dict",
            "give resume=(save, load), or use a loader that has it, as StatefulDataLoader",
        )


def _how(whole: list[int], place: int, rest: list[int]) -> str:
    """Say in which way a resumed epoch is wrong."""
    expected, count = whole[place:], len(rest)
    if rest and rest == whole[:count]:
        return "again"
    if rest and Counter(rest) == Counter(expected):
        return "order"
    for shift in range(1, place):
        if rest and rest == whole[place - shift :][:count]:
            return "repeated"
    if rest == expected[:count] or rest[: len(expected)] == expected:
        return "ended" if rest else "skipped"
    behind = [shift for shift in range(1, len(expected)) if rest == expected[shift:]]
    return "skipped" if behind else "others"


def _dataloader(loader: Any) -> Any:
    """Return the DataLoader that a loader is or holds, or else the loader."""
    held = (thing for _, thing in reachable(loader) if isinstance(thing, DataLoader))
    return next(held, loader)


def _try_state(call: Callable[[], Any]) -> Any:
    """Save or load; what that raises is what is wrong with the state."""
    try:
        return call()
    except Exception as error:
        if is_ours(error):
            raise
        raise _Stateless(f"{type(error).__name__}: {error}") from error


def _pickle(state: Any) -> bytes:
    """Write a state down as a checkpoint does; one that cannot be is what is wrong with it."""
    try:
        return pickle.dumps(state)
    except Exception as error:
        raise _Stateless(f"{type(error).__name__}: {error}") from error
