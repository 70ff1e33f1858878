"""Watches data: waiting for loaders, how many samples come, and whether they ever differ."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import dataloader

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.runs.conditions import Conditions
from trainguard.observe.loop.watch.samples.host_copies import HostCopies
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.fingerprint import fingerprint, hash_rows
from trainguard.observe.tools.local_values import has_memory, start_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

T = TypeVar("T")

_HASHED = 512  # steps whose batches all get a fingerprint; of later ones those that are surveyed
_SIZED = 64  # batches whose loader is asked how many it has
_PLACED = 16  # batches of which it is known who asked for them
_MOST = 65536  # batches that are told apart
_RECENT = 8  # batches of loaders that are remembered
_PASSES = 256
_TENSORS = 4  # of a batch
_ROW, _SMALL = 16, 2**18  # numbers of a row, and of an input


@dataclass(slots=True)
class ServedBatch:
    """
    A batch that a loader has served.

    number: of the batch in the run. batches: how many the loader has; 0 where that is unknown.
    samples: how many its data set has. turn: the number of the pass through a loader that it
    belongs to. tensors: the first few in it. paired: whether it is an input and its target.
    iterator: of the loader.
    """

    number: int
    batches: int
    samples: int
    turn: int
    tensors: "list[weakref.ref[torch.Tensor]]"
    paired: bool
    iterator: "weakref.ref[Any]"
    source: str = ""

    def has(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor is one of the batch, or a view of one."""
        base = tensor._base  # noqa: SLF001
        for ref in self.tensors:
            own = ref()
            if own is not None and (own is tensor or own is base or _same_view(own, tensor)):
                return True
        return False

    def alive(self) -> list[torch.Tensor]:
        """Return the tensors that are still there."""
        return [tensor for ref in self.tensors if (tensor := ref()) is not None]


class Batches(Watcher):
    """
    The columns wait, batch and fingerprints, and the Probe event "batches".

    recent: the latest batches that loaders have served.
    given: the input of the latest pass that may learn. served_by: the iterator of the latest batch.
    at_pass: what is called with the first batch of each pass, and its iterator.
    copies: the batches that were moved to a device. trained_data: identities of the data sets whose
    batches were the latest when a step was made.
    """

    makes = ("wait", "batch", "fingerprints", "Probe:batches")
    relies_on = ("Forwards",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.recent: deque[ServedBatch] = deque(maxlen=_RECENT)
        self.given: weakref.ref[torch.Tensor] | None = None
        self._beside: list[weakref.ref[torch.Tensor]] = []  # to it, in that pass
        self.copies = HostCopies()
        self.served_by: Callable[[], Any] = lambda: None
        self.trained_data: set[int] = set()
        self.at_pass: list[Callable[[Any, ServedBatch], None]] = []
        self._thread = threading.get_ident()
        self._inside = False
        self._count = 0
        self._turns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._waited = 0.0
        self._marks: dict[int, float] = {}
        self._passes: dict[int, tuple[int, ServedBatch | None, int]] = {}
        self._numbers: set[int] = set()  # of the batches of loaders that were trained on
        self._inputs: set[int] = set()  # fingerprints of what was trained on
        self._wholes: set[int] = set()  # those with the targets, until there are two
        self._found: Probe | None = None
        self._rows: tuple[Forward, list[int]] | None = None  # of the latest pass

    def install(self, patches: Patches) -> None:
        """Listen to the iterators of all loaders."""
        patches.replace(dataloader._BaseDataLoaderIter, "__next__", self._next)  # noqa: SLF001
        self.copies.install(patches, self._moves)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Count the samples of a pass, and take the fingerprint of its input."""
        given = self.recorder.given
        if not given:
            return
        first = given[0]
        packed = next((entry for entry in inputs if isinstance(entry, PackedSequence)), None)
        forward.samples = int(packed.batch_sizes[0]) if packed is not None else first.size(0)
        if not forward.gradients:
            return
        self.given = weakref.ref(first)
        self._beside = [weakref.ref(tensor) for tensor in given[1:_TENSORS]]
        number = whole = 0
        served = self.origin(first)
        if self.recorder.steps < _HASHED or any(w.is_surveyed for w in self.recorder.windows):
            number = whole = self._number_of(forward, given)
            if served is not None and number and len(self._wholes) < 2:
                # Another target is another batch.
                whole = fingerprint([self.on_host(first), *served.alive()])
        self._passes[forward.clock] = number, served, whole
        if len(self._passes) > _PASSES:
            del self._passes[next(iter(self._passes))]

    def before_step(self, window: Window) -> Columns:
        """Return what is known of the passes that learned."""
        server = self.served_by()
        if server is not None:
            self.trained_data.add(id(getattr(server, "_dataset", None)))
        learned = [forward for forward in window.forwards if forward.learned]
        if not learned:
            return {}
        each = [self._passes.get(forward.clock, (0, None, 0)) for forward in learned]
        for forward, (number, served, whole) in zip(learned, each, strict=True):
            if served is not None and number and len(self._numbers) < _MOST:
                self._inputs.add(number)
                self._trained_on(forward, served, whole)
        numbers = tuple(number for number, _, _ in each)
        return {
            "batch": tuple(forward.samples for forward in learned),
            "fingerprints": numbers if any(numbers) else (),
        }

    def after_step(self, window: Window) -> Columns:
        """Return how long the window has waited for loaders."""
        before = self._marks.get(id(window), 0.0)
        self._marks[id(window)] = self._waited
        return {"wait": self._waited - before}

    def finish(self) -> Iterator[Event]:
        """Return how many different batches came from a loader that was asked again and again."""
        if self._found is not None and len(self._numbers) > 1:
            yield Probe(
                probe="batches",
                measured=float(max(len(self._inputs), min(2, len(self._wholes)))),
                reference=self._found.reference,
                label=self._found.label,
                source=self._found.source,
            )

    def rows_of(self, forward: Forward, given: Sequence[torch.Tensor]) -> list[int]:
        """Return a number for each sample of what the latest pass was given; several ask for it."""
        if self._rows is None or self._rows[0] is not forward:
            each = [hash_rows(self.on_host(tensor)) for tensor in given]
            rows = each[0] if len(each) == 1 else [hash(row) for row in zip(*each, strict=True)]
            self._rows = forward, rows
        return self._rows[1]

    def _number_of(self, forward: Forward, given: Sequence[torch.Tensor]) -> int:
        """Return the fingerprint of what a pass was given first, by its rows where others ask."""
        first = self.on_host(given[0])
        if len(given) == 1 and _has_rows(first):
            with suppress(Exception):  # inside a transformation of torch.func there are no rows
                return hash(tuple(self.rows_of(forward, given))) % 2**32
        return fingerprint([first])

    def beside(self) -> list[torch.Tensor]:
        """Return what else the latest pass that may learn was given, the first few that remain."""
        alive = [tensor for ref in self._beside if (tensor := ref()) is not None]
        return [tensor for tensor in alive if tensor.layout == torch.strided]

    def origin(self, tensor: torch.Tensor) -> ServedBatch | None:
        """Return the batch of a loader that a tensor belongs to, or that it was moved from."""
        own = self.on_host(tensor)
        return next((served for served in reversed(self.recent) if served.has(own)), None)

    def latest(self) -> list[torch.Tensor]:
        """Return what is still there of the latest batch that a loader has served."""
        return self.recent[-1].alive() if self.recent else []

    def on_host(self, value: T) -> T:
        """Return what a tensor on a device was copied of; the value itself where it is no copy."""
        known: Any = self.copies.find(value) if isinstance(value, torch.Tensor) else None
        return value if known is None else known

    @shielded
    def _moves(self, tensor: torch.Tensor, moved: torch.Tensor) -> None:
        """Remember that a batch of a loader was copied to a device, from the host or another."""
        host = self.copies.find(tensor)
        if host is not None and self.origin(host) is not None:
            self.copies.add(host, moved)

    def _trained_on(self, forward: Forward, served: ServedBatch, whole: int) -> None:
        """Take down that a pass learned from a batch; a loader of one batch is none to speak of."""
        if served.batches < 2 or 0 < served.samples <= forward.samples:
            return
        self._numbers.add(served.number)
        self._wholes.add(whole)
        seen = self.recorder.watcher(Conditions).seen
        if "batches" not in seen:
            seen |= {"batches": served.batches, "samples": served.samples}
        if self._found is None:
            label = f"input of {forward.module}, {forward.samples} samples"
            reference = float(served.batches)
            self._found = make_probe("batches", 1.0, reference, label=label, source=served.source)

    def _next(self, advance: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `__next__` of loaders' iterators, telling how long it took and what came."""
        patches = self.recorder.patches

        @wraps(advance)
        def wrapper(iterator: Any) -> Any:
            """Return the next batch; loaders inside of loaders, or of other threads, are quiet."""
            live, here = patches.live, self._thread == threading.get_ident()
            # The first of a pass is always taken down: what follows may be an evaluation.
            begins = not live and getattr(iterator, "_num_yielded", None) == 0 and patches.active
            if not (live or begins) or not here or self._inside:
                return advance(iterator)
            self._inside = True
            began = perf_counter()
            try:
                batch = advance(iterator)
            finally:
                self._waited += (perf_counter() - began) * live
                self._inside = False
            self._serves(iterator, batch)
            return batch

        return wrapper

    @shielded
    def _serves(self, iterator: Any, batch: Any) -> None:
        """Remember a batch for as long as somebody has it."""
        self._count += 1
        self.served_by = weakref.ref(iterator)
        batches, samples = _sizes(iterator) if self._count <= _SIZED else (0, 0)
        source = caller() if self._count <= _PLACED else ""
        if getattr(iterator, "_num_yielded", 1) == 1 or iterator not in self._turns:
            self._turns[iterator] = self._count
        tensors = tensors_of(batch)
        two = isinstance(batch, tuple | list) and len(batch) == 2 == len(tensors)
        served = ServedBatch(
            self._count,
            batches,
            samples,
            self._turns[iterator],
            [weakref.ref(tensor) for tensor in tensors],
            two,
            weakref.ref(iterator),
            source,
        )
        self.recent.append(served)
        for tell in self.at_pass if self._turns[iterator] == self._count else ():
            tell(iterator, served)


def _has_rows(given: torch.Tensor) -> bool:
    """Say whether an input is a small one with a row of numbers for each sample."""
    plain = type(given) is torch.Tensor and given.is_cpu and given.layout == torch.strided
    if not plain or given.dim() < 2 or not given.is_floating_point() or not has_memory(given):
        return False
    return given.shape[0] > 1 and _ROW * given.shape[0] <= given.numel() <= _SMALL


def _same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors show the same place of a larger one."""
    base = one._base  # noqa: SLF001
    same_base = base is not None and base is other._base  # noqa: SLF001
    return same_base and start_of(one) == start_of(other)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the first few tensors of a batch, whatever it is made of."""
    try:
        entries = dict(batch) if isinstance(batch, Mapping) else batch
        return list(islice(tensors_in(entries), _TENSORS))
    except Exception:  # noqa: BLE001 whatever somebody's batch does when it is looked at
        return []


def _sizes(iterator: Any) -> tuple[int, int]:
    """Return how many batches a loader has, and how many samples; 0 where nobody knows."""
    try:
        collates = iterator._auto_collation  # noqa: SLF001
        samples = len(iterator._dataset) if collates else 0  # noqa: SLF001
        return len(iterator), samples
    except Exception:  # noqa: BLE001 streams have no length, and a data set may raise anything
        return 0, 0
