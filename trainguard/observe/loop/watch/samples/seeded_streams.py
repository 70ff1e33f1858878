"""Watches streams of data that draw numbers: whether each pass draws those of the one before."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from torch.utils.data import IterableDataset

from trainguard.events.base import Event
from trainguard.observe.loop.watch.runs.seeded_generators import Seed, SeededGenerators
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.patches import Patches

_PASSES = 64  # that are compared
_LEAST = 3  # passes that begin alike
_STREAMS = 16

Pass = tuple[int, Counter[Seed]]  # what its first batch is, and the generators made by then


class SeededStreams(Watcher):
    """
    The Probe event "seeded stream": passes through a stream that is trained on and begin alike.

    A line makes a generator of numpy from one seed in each of them. reference: all passes.
    """

    makes = ("Probe:seeded stream",)
    relies_on = ("Batches", "SeededGenerators")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._streams: dict[int, tuple[str, list[Pass]]] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the first batch of each pass through a loader."""
        self._batches = self.recorder.watcher(Batches)
        self._batches.at_pass.append(self._begin)

    def finish(self) -> Iterable[Event]:
        """Return what was found of the streams that were trained on."""
        for key, (name, passes) in self._streams.items():
            if key not in self._batches.trained_data or len(passes) < _LEAST:
                continue
            self.looked.add("seeded stream")
            (first, _), *_ = passes
            anew = set(passes[0][1])
            for (_, before), (_, after) in pairwise(passes):
                anew &= {seed for seed in after if after[seed] > before[seed]}
            if first and all(number == first for number, _ in passes) and anew:
                line, seed = min(anew)
                label, number = f"{name}\n{seed}", len(passes)
                yield make_probe("seeded stream", number, number, label=label, source=line)

    def _begin(self, iterator: Any, served: ServedBatch) -> None:
        """Take down what a pass through a stream begins with."""
        data = iterator._dataset  # noqa: SLF001
        tensors = served.alive()
        if not isinstance(data, IterableDataset) or iterator._num_workers or not tensors:  # noqa: SLF001
            return
        if len(self._streams) < _STREAMS or id(data) in self._streams:
            _, passes = self._streams.setdefault(id(data), (type(data).__name__, []))
            if len(passes) < _PASSES:
                made = self.recorder.watcher(SeededGenerators).made.copy()
                passes.append((fingerprint(tensors), made))
