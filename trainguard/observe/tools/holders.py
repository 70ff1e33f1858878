"""Who holds an object, and under which name: attributes, variables, entries of dicts."""

import gc
import inspect
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import nn

from trainguard.observe.tools.user_line import foreign

_DEEP = 4  # modules around an object that are looked at
_MOST = 32  # referrers of one kind, and frames, that are looked at
_READS_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec"))


@dataclass(slots=True)
class Holders:
    """
    What holds one object.

    names: of the attributes and variables that it is held by. kinds: the classes of their owners.
    wrappers: the modules that it is a part of, the innermost first, as long as nothing in them is
    trained.
    """

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    wrappers: "list[weakref.ref[nn.Module]]" = field(default_factory=list)


def holders(objects: Sequence[Any], modules: Sequence[nn.Module], held: set[int]) -> list[Holders]:
    """
    Return who holds each of some objects.

    modules: all that may have them for parts. held: the ids of the parameters that are trained.
    """
    found = [Holders() for _ in objects]
    by_id = dict(zip(map(id, objects), found, strict=True))
    if objects:
        _look_at_modules(modules, held, by_id)
        _look_at_referrers(objects, by_id)
        _look_at_frames(sys._getframe(1), by_id)  # noqa: SLF001 the one way to look at callers
    return found


def _look_at_modules(
    modules: Sequence[nn.Module], held: set[int], by_id: dict[int, Holders]
) -> None:
    """Add the names that the objects have as parts of modules, and of the modules around those."""
    places: dict[int, tuple[nn.Module, str]] = {}
    for module in modules:
        parts = vars(module).get("_modules")
        for name, part in parts.items() if isinstance(parts, dict) else ():
            places.setdefault(id(part), (module, name))
    for key, own in by_id.items():
        for level in range(_DEEP):
            if key not in places:
                break
            module, name = places[key]
            trained = any(id(p) in held for _, p in nn.Module.named_parameters(module))
            if trained and level:
                break
            own.names.append(name)
            own.kinds.append(type(module).__name__)
            if trained:
                break
            own.wrappers.append(weakref.ref(module))
            key = id(module)


def _look_at_referrers(objects: Sequence[Any], by_id: dict[int, Holders]) -> None:
    """Add the entries of dicts, and the attributes of objects that have no dict yet."""
    dicts = 0
    for referrer in gc.get_referrers(*objects):
        entries: Any
        if type(referrer) is dict:
            entries, kind = referrer, ""
        elif type(referrer).__module__ != "builtins" and not isinstance(referrer, FrameType):
            entries, kind = getattr(referrer, "__dict__", None), type(referrer).__name__
        else:
            continue
        dicts += 1
        if dicts > _MOST or not isinstance(entries, dict):
            continue
        _add(entries, kind, by_id)


def _look_at_frames(frame: FrameType | None, by_id: dict[int, Holders]) -> None:
    """Add the local variables of the user's functions that are running."""
    for _ in range(_MOST * 4):
        if frame is None:
            return
        code = frame.f_code
        function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        if function and foreign(code.co_filename) and not _READS_LOCALS & set(code.co_names):
            entries = frame.f_locals
            _add(dict(entries), "", by_id)
            if type(entries) is dict:  # before Python 3.13 the frame keeps this dict, and all in it
                entries.clear()
        frame = frame.f_back


def _add(entries: dict[Any, Any], kind: str, by_id: dict[int, Holders]) -> None:
    """Add the names under which a dict has the objects."""
    for name, value in list(entries.items()):
        own = by_id.get(id(value))
        if own is not None and isinstance(name, str):
            own.names.append(name)
            own.kinds.append(kind)
