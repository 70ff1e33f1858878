"""Watches runs that go on from a file: whether the averages of their weights go on too."""

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import dist
from typing import Any, NamedTuple

import torch
from torch import nn

from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.parameters.averaged_copies import AVERAGES, AveragedCopies
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.averaged_copies import AveragedCopy
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.heap import MOST_OBJECTS, kinds, pick
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_FILES, _MATRICES, _DEEP = 8, 512, 3  # files, matrices of a state, and levels, that are looked at
_ENTRIES = 4096  # of a state: longer lists are data
_SAMPLED = 32  # elements of a matrix, in which an average is apart from what it follows
_LOOKS = {*range(1, 9), 16, 32, 64}  # steps after which copies are looked for, and how they move
# Of the way from the weights in the file to their average: one that goes on is near its end.
_AWAY = 0.8
_APART = 0.1  # of a module that is looked at before the first step: it has what was loaded
_BEHIND = 4.0  # times what the weights have moved: of two steps, a decay above 0.9 is as slow

_Sampled = tuple[torch.Size, tuple[float, ...]]


class _AverageFile(NamedTuple):
    """The states in a file, by the path of their keys, as matrices in their order."""

    states: dict[str, list[_Sampled]]
    source: str


class _Begun(NamedTuple):
    """
    An optimizer that goes on from a state of a file: which of its matrices each parameter is.

    modules: other modules of these shapes, by id: how far from the averages of the file each was.
    """

    file: _AverageFile
    state: str
    places: dict[int, int]
    modules: "dict[int, tuple[weakref.ref[nn.Module], dict[str, float]]]"


class ResumedAverages(Watcher):
    """
    The Probe event "resumed average": an average in a file, beside which another one begins anew.

    In a training whose weights are those of the file, and whose optimizer has a state before its
    first step. measured: how far from the average of the file the copy is, in distances between
    that and the weights of the file; label: where it stands in the file, and the copy's name.
    """

    makes = ("Probe:resumed average",)
    relies_on = ("AveragedCopies",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._files: list[_AverageFile] = []
        self._begun: dict[int, _Begun] = {}  # by window
        self._known = set[str]()  # names of copies that were looked at: later they have moved
        self._moving = set[str]()
        self._away: dict[str, Probe] = {}

    def install(self, patches: Patches) -> None:
        """Listen to files that are read."""
        patches.replace(torch, "load", tell_after(self._see_loaded))

    def before_step(self, window: Window) -> Columns:
        """See which weights an optimizer begins with, and then whether its averages are near."""
        optimizer = window.optimizer() if self._files and window.optimizer is not None else None
        if optimizer is None:
            return {}
        with suppress(Exception):  # whatever somebody's optimizers hold
            if not window.index and any(optimizer.state.values()):
                self._begin(window)
            elif id(window) in self._begun and window.index in _LOOKS:
                self._look(self._begun[id(window)])
                self._see_moves()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found of copies that follow: others are what was loaded from the file."""
        self._see_moves()
        yield from (found for name, found in self._away.items() if name in self._moving)

    def _see_moves(self) -> None:
        """Take down which copies were seen to move: at the end they may be gone."""
        averages = self.recorder.watcher(AveragedCopies)
        for (name, _, _), (_, moved) in zip(averages.copies(), averages.moves(), strict=True):
            self._moving |= {name} if moved else set()

    @shielded
    def _see_loaded(self, found: Any, /, *_: Any, **__: Any) -> None:
        """Take down the states in what a `torch.load` has read, where one is of averages."""
        if self.recorder.patches.active and len(self._files) < _FILES:
            kept = dict(_states_in(found, "", _DEEP))
            if len(kept) > 1 and any(map(_is_average, kept)):
                states = {path: [*map(_sample, matrices)] for path, matrices in kept.items()}
                self._files.append(_AverageFile(states, caller()))

    def _begin(self, window: Window) -> None:
        """Take down which state of a file the parameters of an optimizer are."""
        own = {id(p): _sample(p) for p in window.parameters if _is_matrix(p)}
        for file in self._files:
            for path, state in file.states.items():
                if _is_average(path):
                    continue
                known = {matrix: place for place, matrix in enumerate(state)}
                places = {key: known[m] for key, m in own.items() if m in known}
                if places and len(places) == len(own):
                    modules = dict(_find_modules(file, state))
                    self._begun[id(window)] = _Begun(file, path, places, modules)
                    return

    def _look(self, begun: _Begun) -> None:
        """See whether the averages that are known by now are near those of the file."""
        shapes = _shapes_in(begun.file.states[begun.state])
        states = [*begun.file.states.items()]
        averages = {p: s for p, s in states if _is_average(p) and _shapes_in(s) == shapes}
        for name, copy, _ in self.recorder.watcher(AveragedCopies).copies():
            if name in self._known:
                continue
            before, least = [_distance_before(copy, begun, path) for path in averages], _APART
            if None in before:
                before = [_distance(copy, begun, state) for state in averages.values()]
                least = _AWAY
            known = [away for away in before if away is not None]
            if len(known) < len(averages) or not known:
                continue  # of several averages in the file, it may be any
            self.looked.add("resumed average")
            self._known.add(name)
            if min(known) > least:
                label, step = f"{next(iter(averages))}\n{name}", self.recorder.steps
                found = make_probe("resumed average", min(known), least, step=step, label=label)
                self._away[name] = replace(found, source=begun.file.source)


def _find_modules(
    file: _AverageFile, weights: Sequence[_Sampled]
) -> "Iterator[tuple[int, tuple[weakref.ref[nn.Module], dict[str, float]]]]":
    """Yield modules that are like what is trained, and how far from each average they are."""
    shapes = [shape for shape, _ in weights]
    averages = {
        p: _row(s) for p, s in file.states.items() if _is_average(p) and shapes == _shapes_in(s)
    }
    apart = {path: dist(row, _row(weights)) for path, row in averages.items()}
    objects = gc.get_objects() if any(apart.values()) else []
    if len(objects) > MOST_OBJECTS:
        return
    for module in pick(objects, set(kinds(nn.Module))):
        own = list(_matrices_of(module, len(shapes)))
        if [p.shape for p in own] == shapes:
            row = _row([_sample(p) for p in own])
            far = {path: dist(row, averages[path]) / size for path, size in apart.items() if size}
            yield id(module), (weakref.ref(module), far)


def _matrices_of(module: nn.Module, most: int) -> Iterator[torch.Tensor]:
    """Yield the matrices of a module in the order of its state, and one more than `most`."""
    every = (
        value
        for part in module.modules()
        for name, value in (*part._parameters.items(), *part._buffers.items())  # noqa: SLF001 as torch
        if name not in part._non_persistent_buffers_set  # noqa: SLF001
    )
    return islice(filter(_is_matrix, every), most + 1)  # type: ignore[arg-type]


def _row(state: Sequence[_Sampled]) -> list[float]:
    """Return all elements of a state that were looked at."""
    return [number for _, some in state for number in some]


def _shapes_in(state: Sequence[_Sampled]) -> list[torch.Size]:
    """Return the shapes of a state."""
    return [shape for shape, _ in state]


def _distance_before(copy: AveragedCopy, begun: _Begun, path: str) -> float | None:
    """Return how far a module was before the first step; None where it was not looked at."""
    module = copy.module() if copy.module is not None else None
    known = begun.modules.get(id(module)) if module is not None else None
    return known[1].get(path) if known is not None and known[0]() is module else None


def _distance(copy: AveragedCopy, begun: _Begun, averages: Sequence[_Sampled]) -> float | None:
    """Return how far a copy is from what the file has; None where that cannot be said yet."""
    found = []
    for own, other in copy.entries():
        place = begun.places.get(id(own))
        if place is None or not _is_matrix(other):
            continue
        weights, average = begun.file.states[begun.state][place][1], averages[place][1]
        apart, moved = dist(weights, average), dist(_sample(own)[1], weights)
        if apart > _BEHIND * moved:  # else it is soon where it should be, wherever it begins
            found.append(dist(_sample(other)[1], average) / apart)
    return min(found, default=None)


def _states_in(found: Any, path: str, deep: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the matrices of each mapping or list that has some, with the path of its keys."""
    if not isinstance(found, Mapping | list | tuple) or deep < 0 or len(found) > _ENTRIES:
        return
    entries = [*(found.items() if isinstance(found, Mapping) else enumerate(found))]
    if matrices := [value for _, value in entries if _is_matrix(value)]:
        yield path, matrices[:_MATRICES]
    for key, value in entries:
        if isinstance(key, str):
            yield from _states_in(value, f"{path}.{key}".lstrip("."), deep - 1)


def _is_average(path: str) -> bool:
    """Say whether a path in a file is that of an average, by its words."""
    return not AVERAGES.isdisjoint(words_of(path.replace(".", "_")))


def _is_matrix(value: Any) -> bool:
    """Say whether a value is a matrix, or more, that can be read without waiting."""
    plain = isinstance(value, torch.Tensor) and value.dim() > 1 and value.is_floating_point()
    return bool(plain and value.is_cpu and has_memory(value) and value.numel())


def _sample(matrix: torch.Tensor) -> _Sampled:
    """Return the shape of a matrix, and some of its elements."""
    some = sample_elements(matrix.detach(), _SAMPLED).double().reshape(-1)
    return matrix.shape, tuple(some.tolist())
