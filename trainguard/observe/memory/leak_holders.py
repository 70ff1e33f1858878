"""Who keeps what grows: a list under its name, a cache, or something that has a bound."""

import gc
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from typing import Any

import torch
from torch import Tensor

from trainguard.observe.loop.watch.gradients.autograd_graph import below
from trainguard.observe.memory.live_objects import LiveStorage, Mark, marks_at
from trainguard.observe.tools.heap import holders, living

_TRIED = 16  # tensors whose keeper is looked for
_DEEP = 256  # nodes of a graph that are looked at for those of older steps
_CONTAINERS = (list, deque, set, dict, tuple)
_SMALL = 32  # entries of what may be one record of many
_BOUNDS = ("max", "capacity", "limit", "bound", "window", "size", "length", "horizon")


@dataclass(frozen=True, slots=True)
class LeakHolder:
    """
    What holds what grows.

    text: "`losses`, a list of 80", or nothing where that is not found. bounded: whether it lets go
    of the oldest once it is full.
    """

    text: str = ""
    bounded: bool = False


def of_tensors(kept: Sequence[LiveStorage]) -> LeakHolder:
    """Return who keeps storages that were made step by step."""
    keys = {one.key for one in kept} - {0}
    return _keeper([tensor for tensor in living(Tensor) if _key(tensor) in keys])


def of_graphs(marks: Sequence[Mark]) -> LeakHolder:
    """Return who keeps graphs that were marked step by step."""
    wanted = {id(mark) for mark in marks}
    tensors = [tensor for tensor in living(Tensor) if tensor.grad_fn is not None]
    own = [t for t in tensors if any(id(mark) in wanted for mark in marks_at(t.grad_fn))]
    behind = {id(t): _count_marked(t.grad_fn, wanted) for t in ([] if len(own) > 1 else tensors)}
    most = max(behind.values(), default=0)
    own = own if len(own) > 1 else [t for t in tensors if behind[id(t)]]
    last = [t for t in own if behind.get(id(t), 0) == most][-1:]
    del tensors  # a list of ours is no keeper
    if most > 1:  # one graph on top of the other: whoever holds the last holds all
        names = _names(last[0])
        return LeakHolder(f"`{names[0]}`" if names else "")
    return _keeper(own)


def _count_marked(node: Any, wanted: set[int]) -> int:
    """Count the nodes of a graph, the nearest of them, that bear one of some marks."""
    return sum(any(id(mark) in wanted for mark in marks_at(each)) for each in below(node, _DEEP))


def _keeper(tensors: list[Any]) -> LeakHolder:
    """Return the container that most of some tensors are in, if it is one that has several."""
    del tensors[:-_TRIED]  # in place: the caller's list is no keeper
    wanted = {id(tensor) for tensor in tensors}
    if len(wanted) < 2:
        return LeakHolder()
    direct = [r for r in gc.get_referrers(*tensors) if r is not tensors]
    records = [r for r in direct if type(r) in (dict, tuple, list) and len(r) <= _SMALL]
    wanted |= {id(record) for record in records}
    outer = [r for r in gc.get_referrers(*records) if r is not records and r is not direct]
    counts: Counter[int] = Counter()
    found = {}
    for container in (*direct, *outer):
        found[id(container)] = container
        counts[id(container)] = _count(container, wanted)
    key, count = counts.most_common(1)[0] if counts else (0, 0)
    if count < 2:
        return LeakHolder()
    container = found.pop(key)
    del direct, records, outer, found
    return _describe(container)


def _count(container: Any, wanted: set[int]) -> int:
    """Count the entries of a container that are wanted; a cache is known by what it refers to."""
    if isinstance(container, _lru_cache_wrapper):
        entries: Any = gc.get_referents(container)
    elif type(container) not in _CONTAINERS:
        return 0
    else:
        entries = container.values() if isinstance(container, dict) else container
    return len({id(entry) for entry in list(entries)} & wanted)


def _describe(container: Any) -> LeakHolder:
    """Say what a container is, under which name it is held, and whether it has a bound."""
    caches = [r for r in gc.get_referrers(container) if isinstance(r, _lru_cache_wrapper)]
    for cache in (container, *caches):
        if isinstance(cache, _lru_cache_wrapper):
            name = getattr(cache, "__name__", "a function")
            return LeakHolder(f"the cache of `{name}`", cache.cache_info().maxsize is not None)
    what = f"a {type(container).__name__} of {len(container)}"
    names = _names(container)
    bounded = isinstance(container, deque) and container.maxlen is not None
    text = f"`{names[0]}`, {what}" if names else what
    return LeakHolder(text, bounded or _has_bound(container))


def _names(held: Any) -> list[str]:
    """Return the names under which something is held: `Buffer.entries`, `losses`."""
    known = holders([held], [], set())[0]
    pairs = zip(known.kinds, known.names, strict=True)
    return [f"{kind}.{name}" if kind else name for kind, name in pairs]


def _has_bound(container: Any) -> bool:
    """Say whether a number called like a bound, and not reached yet, stands next to a container."""
    for owner in gc.get_referrers(container):
        entries = owner if type(owner) is dict else getattr(owner, "__dict__", None)
        if not isinstance(entries, dict) or len(entries) > _SMALL or "__name__" in entries:
            continue
        if any(number > len(container) for number in _bounds(entries)):
            return True
    return False


def _bounds(entries: dict[Any, Any]) -> Iterator[int]:
    """Yield the whole numbers among attributes that are called like a bound."""
    for name, value in list(entries.items()):
        if isinstance(name, str) and type(value) is int and any(b in name.lower() for b in _BOUNDS):
            yield value


def _key(tensor: Any) -> int:
    """Return what the views of a tensor share; -1 where it has no storage of its own."""
    strided = tensor.layout is torch.strided
    return int(tensor.untyped_storage()._cdata) if strided else -1  # noqa: SLF001
