"""Watches streams that are shuffled through a buffer: whether what is left in it is served."""

import ast
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from types import CodeType, GeneratorType
from typing import Any

from torch.utils.data._utils import fetch

from trainguard.core.errors import passes_on
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.discarded import find_function
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import variables_of

_LEAST, _MOST = 16, 2**14  # samples in a buffer
_SERVED = 64  # samples of a pass, at least
_SHARE = 0.05  # of the samples of a pass: fewer that are left hardly matter
_DEEP = 4  # generators inside of each other
_BATCHES = 2  # that a buffer holds more than: what drains it takes a whole batch from it alone


@dataclass(slots=True)
class _Buffer:
    """
    A list of a generator, and what became of what is in it.

    owner: the generator, kept to know whether it has ended by itself. ids: of what is in it now.
    known: of that which was served, and is in it still. served: how much of what was served came
    from it. new: how many it was given during the latest whole batches.
    """

    samples: list[Any]
    owner: Any
    ids: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    served: int = 0
    new: tuple[int, int] = (0, 0)

    def see(self, batch: set[int]) -> None:
        """Look at it after a batch."""
        now = set(map(id, self.samples)) if len(self.samples) <= _MOST else set()
        self.served += len(batch & (self.ids | now))
        self.known = (self.known | batch) & now
        self.new = self.new[1], len(now - self.ids)
        self.ids = now

    def left(self, whole: int, size: int) -> int:
        """Return how many it still has that nobody was served, after so many samples in all."""
        if self.owner.gi_frame is not None or _may_stop(self.owner.gi_code):
            return 0
        kept = set(map(id, self.samples)) - self.known
        enough = max(_LEAST, _SHARE * whole, _BATCHES * size + 1)
        is_drained = 2 * self.new[0] < size
        return 0 if is_drained or 2 * self.served < whole or len(kept) < enough else len(kept)


@dataclass(slots=True)
class _StreamPass:
    """A pass through a data set that is a stream: its buffers, and what it has served."""

    ended: Any  # a weak reference that forgets the pass where it is left
    buffers: dict[int, _Buffer] = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    size: int = 0  # of a batch


class StreamBuffers(Watcher):
    """
    The Probe event "left in a buffer": samples that a stream had read, and ended without serving.

    Of data sets that are streams, in this process: measured is how many were left in a list from
    which samples were served up to the end; reference: how many were served.
    """

    makes = ("Probe:left in a buffer",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._streams: dict[int, _StreamPass] = {}
        self._found: Probe | None = None

    def install(self, patches: Patches) -> None:
        """Listen to what takes samples out of a stream."""
        patches.replace(fetch._IterableDatasetFetcher, "fetch", self._wrap)  # noqa: SLF001

    def finish(self) -> Iterable[Event]:
        """Return the first pass that ended so."""
        return [self._found] if self._found is not None else []

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes a batch out of a stream, and tells of it."""

        @wraps(original)
        def wrapper(fetcher: Any, wanted: Any) -> Any:
            """Take a batch."""
            if not self.recorder.patches.active:
                return original(fetcher, wanted)
            self._open(fetcher)
            try:
                return original(fetcher, wanted)
            except StopIteration:
                self._close(id(fetcher))
                raise

        return wrapper

    @shielded
    def _open(self, fetcher: Any) -> None:
        """Meet a pass, and listen to what its samples are put together by."""
        key = id(fetcher)
        if key in self._streams:
            return
        self._streams[key] = _StreamPass(
            weakref.ref(fetcher, lambda _: self._streams.pop(key, None))
        )
        collate, take = fetcher.collate_fn, partial(self._take, weakref.ref(fetcher))

        @wraps(collate)
        def wrapper(samples: Any) -> Any:
            """Put samples together."""
            take(samples)
            return collate(samples)

        fetcher.collate_fn = passes_on(wrapper)

    @shielded
    def _take(self, reference: Any, samples: Any) -> None:
        """Look at the buffers after the samples of a batch were taken."""
        fetcher = reference()
        stream = self._streams.get(id(fetcher))
        if stream is None:
            return
        batch = samples if isinstance(samples, list) and fetcher.auto_collation else [samples]
        stream.batches += 1
        stream.samples += len(batch)
        stream.size = max(stream.size, len(batch))
        if stream.batches & (stream.batches - 1) == 0:
            for owner, found in _lists_in(fetcher.dataset_iter):
                stream.buffers.setdefault(id(found), _Buffer(found, owner))
        ids = set(map(id, batch))
        for buffer in stream.buffers.values():
            buffer.see(ids)

    @shielded
    def _close(self, key: int) -> None:
        """Look at what is left where a stream has ended."""
        stream = self._streams.pop(key, None)
        if stream is None or stream.samples < _SERVED:
            return
        self.looked.add("left in a buffer")
        left = max(
            (b.left(stream.samples, stream.size) for b in stream.buffers.values()), default=0
        )
        if left and self._found is None:
            self._found = make_probe("left in a buffer", left, stream.samples)


def _lists_in(stream: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the lists that are variables of a generator, and of those that it goes through."""
    waiting = [(stream, 0)]
    while waiting:
        made, depth = waiting.pop()
        if not isinstance(made, GeneratorType) or made.gi_frame is None or depth > _DEEP:
            continue
        held = [*variables_of(made.gi_frame).values(), made.gi_yieldfrom]
        waiting += [(each, depth + 1) for each in held if isinstance(each, GeneratorType)]
        yield from ((made, each) for each in held if type(each) is list and len(each) >= _LEAST)


@lru_cache(maxsize=64)
def _may_stop(code: CodeType) -> bool:
    """Say whether a generator may end before what it goes through, or is not known."""
    tree = find_function(code)
    ends = (ast.Return, ast.Break)
    return tree is None or any(isinstance(node, ends) for node in ast.walk(tree))
