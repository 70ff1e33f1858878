"""Watches data sets that serve what they store: whether serving a sample changes it."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loader.reachable_state import (
    WIDE,
    generators,
    named_arrays,
    put_back,
    state_of,
)
from trainguard.observe.loop.counterfactual.forking import Exit, fork, obstacle
from trainguard.observe.loop.watch.samples.batches import Batches, tensors_of
from trainguard.observe.loop.watch.samples.second_passes import DEEP, SecondPasses, read_class
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.isolation import read_streams, write_streams
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_SECONDS = 2.0  # of processor time for a few samples
_TRIES, _SAMPLES = 4, 6  # few samples each: an augmentation may leave half of them alone
_LEAST = 2  # of them that were changed
_BYTES = 2**27  # of arrays, each of which is copied in the child
_VALUES = 18  # of one array in a try: fewer may be weights or counts of its samples
_NEAR = 1e-3  # of the largest value: what is divided by its own norm again is almost the same
# The same, of what the first serving here has changed by more: (x - mean) / std of bytes comes to
# rest within a few servings, while rounding changes float32 by 1e-7 or so.
_NEARLY_STILL = 2e-5
# What a data set means to change: `self.weights[index] *= 0.9`.
_STORES = re.compile(r"self\.\w+(?:\[[^\]\n]*\])+\s*(?:[-+*/%@|&^]|//|\*\*)?=(?!=)")

Arrays = dict[int, np.ndarray[Any, Any]]  # by the identity of what they are copies of
Places = dict[int, frozenset[int]]  # of values that have changed, by array


class StoredSamples(Watcher):
    """
    The Probe event "stored": values of a data set that change each time a sample is served.

    That is tried in a closed-off child, before the second pass of a loader without workers: the
    same samples are served with the same random numbers twice, and with others between.
    """

    makes = ("Probe:stored",)
    relies_on = ("Batches", "SecondPasses")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[int, Probe] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of second passes."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(SecondPasses).listeners.append(self._try)

    def finish(self) -> Iterable[Event]:
        """Return what was found of data that were trained on."""
        return [probe for key, probe in self._found.items() if key in self._batches.trained_data]

    @shielded
    def _try(self, loader: Any, workers: bool) -> None:
        """Have a child serve some samples again and again, and take down what it has seen."""
        if workers:  # each changes a copy of its own, which is gone after the pass
            return
        data = loader.dataset
        name, source, code = read_class(data)
        own = loader.collate_fn is not default_collate
        if _means_to_store(code) or obstacle():
            return
        answer = fork(_SECONDS, lambda way_out: _serve(loader, way_out))
        report = answer.report if answer is not None else {}
        self.looked |= {"stored"} if "changed" in report else set()
        if report.get("changed", 0) >= _LEAST:
            self._found[id(data)] = Probe(
                probe="stored",
                measured=float(report["values"]),
                reference=float(report["changed"]),
                label=f"{name}.__getitem__" + ", or the loader's collate_fn" * own,
                source=source or caller(),
            )


def _means_to_store(code: list[str]) -> bool:
    """Say whether a line of what serves samples writes to what the data set has."""
    return any(_STORES.search(line.partition("#")[0]) for line in code)


def _serve(loader: Any, way_out: Exit) -> None:
    """Serve a few samples again and again, and report how much of what is stored changes."""
    data = loader.dataset
    if not _copy_arrays(data):
        way_out.void("nothing is stored, or too much of it")
    near = _find_near(data)
    stride = max(_SAMPLES, len(near) // _TRIES)
    firsts = range(0, len(near) - _SAMPLES + 1, stride)
    seen = [_serve_again(loader, near[first : first + _SAMPLES]) for first in firsts]
    every = [(key, place) for found in seen for key in found for place in found[key]]
    # What changes whichever sample is served is a buffer, or a statistic.
    apart = len(set(every)) == len(every)
    values = max((len(places) for found in seen for places in found.values()), default=0)
    way_out.report(changed=sum(map(bool, seen)) if apart else 0, values=values)


def _find_near(data: Any) -> list[int]:
    """Return the samples of the first elements, which are looked at where there are very many."""
    places = [*range(len(data))]
    for _ in range(DEEP):
        if not isinstance(data, Subset):
            break
        places, data = [int(data.indices[place]) for place in places], data.dataset
    near = [sample for sample, place in enumerate(places) if place < WIDE]
    return near if len(near) >= _LEAST * _SAMPLES else [*range(len(places))]


def _serve_again(loader: Any, samples: list[int]) -> Places:
    """Return what changes of what is stored, if the same random numbers serve other values too."""
    first = _copy_arrays(loader.dataset)
    _serve_batch(loader, samples)  # what is filled or normalised at the first time is so now
    held = generators(loader.dataset)
    states = {name: state_of(generator) for name, generator in held.items()}
    streams = read_streams()
    before, stored = _serve_batch(loader, samples), _copy_arrays(loader.dataset)
    _serve_batch(loader, samples)
    write_streams(streams)
    for name, state in states.items():
        put_back(held[name], state)
    after, last = _serve_batch(loader, samples), _copy_arrays(loader.dataset)
    near = _NEARLY_STILL if _changes(first, stored, _NEAR) else _NEAR
    return _changes(stored, last, near) if _changes(before, after, near) else {}


def _serve_batch(loader: Any, samples: list[int]) -> Arrays:
    """Return copies of the tensors of a batch."""
    batch = loader.collate_fn([loader.dataset[sample] for sample in samples])
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim()]
    return {place: array_of(tensor).copy() for place, tensor in enumerate(tensors)}


def _copy_arrays(data: Any) -> Arrays:
    """Return copies of the arrays that a data set stores; none of very many bytes."""
    arrays: Arrays = {}
    for _, thing in named_arrays(data):
        array = array_of(thing) if isinstance(thing, torch.Tensor) else thing
        if _is_everyones(thing):
            return {}
        if array.size >= _VALUES:
            arrays[id(thing)] = array
    if sum(array.nbytes for array in arrays.values()) > _BYTES:
        return {}
    return {key: array.copy() for key, array in arrays.items()}


def _is_everyones(array: Any) -> bool:
    """Say whether an array shows a file or shared memory, so that a child would change it too."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    if isinstance(array, torch.Tensor):
        return bool(torch.Tensor.is_shared(array))  # type: ignore[no-untyped-call]
    return isinstance(array, np.memmap) or not isinstance(array, np.ndarray)


def _changes(before: Arrays, after: Arrays, share: float) -> Places:
    """Return which values of each array have changed by more than a share of the largest."""
    found: Places = {}
    for key in before.keys() & after.keys():
        one, other = before[key].reshape(-1), after[key].reshape(-1)
        if len(one) == len(other) and one.dtype.kind in "fiu":
            near = share * np.abs(one).max(initial=0.0) if one.dtype.kind == "f" else 0
            places = (np.abs(one.astype(float) - other) > near).nonzero()[0]
            if len(places) >= _VALUES:  # fewer may be counts or weights of the samples
                found[key] = frozenset(places.tolist())
    return found
