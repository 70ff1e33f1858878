"""Search the heap: who holds an object, and what is alive that is a copy of a trained module."""

import gc
import inspect
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from types import FrameType
from typing import Any

import torch
from torch import nn

from trainguard.observe.tools.averaged_copies import (
    ALIKE,
    AveragedCopy,
    TrainedModule,
    likenesses,
    trained_modules,
)
from trainguard.observe.tools.user_line import foreign

MOST_OBJECTS = 3_000_000  # with more than these, nothing is looked for
_MOST_COPIES = 8
_TABLES = {dict, OrderedDict, list}
Parts = tuple[tuple[str, ...], tuple[str, ...]]
_DEEP = 4  # modules around an object that are looked at
_MOST = 32  # referrers of one kind, and frames, that are looked at
_READS_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec"))
_local = threading.local()


def search(
    roots: Iterable[nn.Module], held: set[int], known: Sequence[AveragedCopy]
) -> tuple[list[AveragedCopy], list[nn.Module]]:
    """
    Return the copies of trained modules that are not known yet, and all modules that are alive.

    held: the ids of the parameters that are trained. All objects that Python's garbage collector
    knows are looked at once, and none is kept.
    """
    trained = [one for root in roots for one in trained_modules(root, held)]
    objects = gc.get_objects() if trained else []
    if not trained or len(objects) > MOST_OBJECTS:
        return [], []
    trained.sort(key=lambda one: -one.elements)
    modules = pick(objects, set(kinds(nn.Module)))
    held_in = pick(objects, _TABLES)
    del objects
    found = _modules(modules, trained, held, known)
    whole = [one for one in trained if one.whole]
    lengths = {length for one in whole for length in one.lengths}
    own = {id(vars(module).get("_parameters")) for module in modules}
    as_long = compress(held_in, map(lengths.__contains__, map(len, held_in)))
    tables = [table for table in as_long if id(table) not in own]
    found += _shadows(tables, whole, [*known, *found])
    return found[: max(0, _MOST_COPIES - len(known))], modules


def _modules(
    modules: Sequence[nn.Module],
    trained: Sequence[TrainedModule],
    held: set[int],
    known: Sequence[AveragedCopy],
) -> list[AveragedCopy]:
    """Return the modules that are copies, the largest first, and nothing inside of another one."""
    taken = {id(one.module()) for one in trained}
    for copy in known:
        taken |= _ids_below(copy.source)
    by_parts: dict[Parts, list[nn.Module]] = {}
    for module in modules:
        by_parts.setdefault(_parts(module), []).append(module)
    found: list[AveragedCopy] = []
    for one in trained:
        original = one.module()
        for module in by_parts.get(_parts(original), ()) if original is not None else ():
            if id(module) not in taken and _shapes(module) == one.shapes:
                best = _best(module, trained, held)
                if best is not None:
                    found.append(best)
                    taken |= _ids_below(module)
    return found


def _best(
    module: nn.Module, trained: Sequence[TrainedModule], held: set[int]
) -> AveragedCopy | None:
    """Return a module as a copy of the trained one that it is most like, if it is one."""
    ids = _parameter_ids(module)
    shapes = _shapes(module)
    made = [
        AveragedCopy(one, one.compared, weakref.ref(module), ids=ids - held)
        for one in trained
        if one.shapes == shapes
    ]
    if ids & held:  # trained itself, or a shallow copy that has the very same parameters
        made = [copy for copy in made if ids == _parameter_ids(copy.follows.module())]
    ranked = zip(likenesses(made), made, strict=True)
    likeness, best = max(ranked, key=lambda pair: pair[0], default=(0.0, None))
    return best if likeness >= ALIKE else None


def _shadows(
    tables: Sequence[Any], trained: Sequence[TrainedModule], known: Sequence[AveragedCopy]
) -> list[AveragedCopy]:
    """Return the dicts and lists of tensors that are copies, those without own memory last."""
    places = {_place(copy) for copy in known}
    followed = {id(copy.source) for copy in known}
    found: list[AveragedCopy] = []
    candidates: list[AveragedCopy] = []
    shared: list[AveragedCopy] = []
    for table in tables:
        made = _match_list(table, trained) if type(table) is list else _match_dict(table, trained)
        if made is None or not made.pairs() or id(table) in followed:
            continue
        if not made.is_shared():
            candidates.append(made)
        elif not made.has_the_very_same():  # an optimizer has a list of these
            shared.append(made)
    for made, likeness in zip(candidates, likenesses(candidates), strict=True):
        place = _place(made)
        if likeness >= ALIKE and place not in places:
            places.add(place)
            found.append(made)
    return found + shared


def _match_dict(candidate: dict[Any, Any], trained: Sequence[TrainedModule]) -> AveragedCopy | None:
    """Return a dict as a copy where it has a tensor for most of a module's parameters."""
    for one in trained:
        if one.compared[0] in candidate:
            present = sum(_is_tensor(candidate.get(name)) for name in one.held)
            if 2 * present >= len(one.held):
                return AveragedCopy(one, one.compared, shadow=candidate)
    return None


def _match_list(candidate: list[Any], trained: Sequence[TrainedModule]) -> AveragedCopy | None:
    """Return a list as a copy where its tensors have the shapes of a module's parameters."""
    for one in trained:
        for names in (one.held, tuple(one.shapes)):
            if len(candidate) == len(names) and all(
                _is_tensor(entry) and entry.shape == one.shapes[name]
                for entry, name in zip(candidate, names, strict=True)
            ):
                keys = tuple(names.index(name) for name in one.compared)
                return AveragedCopy(one, keys, shadow=candidate)
    return None


def _is_tensor(value: Any) -> bool:
    """Say whether an object is a tensor, by its type alone: isinstance may wake up a lazy proxy."""
    return issubclass(type(value), torch.Tensor)


def _place(copy: AveragedCopy) -> int:
    """Return where in memory the first compared parameter of a copy is; 0 where it is gone."""
    pairs = copy.pairs()
    return pairs[0][1].data_ptr() if pairs else 0


def _parts(module: nn.Module) -> Parts:
    """Return the names of a module's own parts and parameters; a half-made one has none."""
    parts, own = (vars(module).get(name) for name in ("_modules", "_parameters"))
    if not isinstance(parts, dict) or not isinstance(own, dict):
        return (), ()
    return tuple(parts), tuple(own)


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of all parameters of a module; of a half-made one, none."""
    if _parts(module) == ((), ()):
        return {}
    try:
        return {name: parameter.shape for name, parameter in nn.Module.named_parameters(module)}
    except Exception:  # noqa: BLE001 whatever somebody's module does when it is looked at
        return {}


def _ids_below(source: Any) -> set[int]:
    """Return the ids of a module and of all modules in it."""
    return (
        {id(part) for _, part in nn.Module.named_modules(source)}
        if isinstance(source, nn.Module)
        else set()
    )


def _parameter_ids(module: nn.Module | None) -> frozenset[int]:
    """Return the ids of a module's parameters."""
    named = nn.Module.named_parameters(module) if module is not None else ()
    return frozenset(id(parameter) for _, parameter in named)


@dataclass(slots=True)
class Holders:
    """
    What holds one object.

    names: of the attributes and variables that it is held by. kinds: the classes of their owners.
    direct: the names that are its own, and not of an object that has it for an attribute.
    wrappers: the modules that it is a part of, the innermost first, as long as nothing in them is
    trained.
    """

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    direct: set[str] = field(default_factory=set)
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
    referrers = gc.get_referrers(*objects)
    owners = _owners([referrer for referrer in referrers if type(referrer) is dict])
    for referrer in referrers:
        entries: Any
        if type(referrer) is dict:
            entries, kind = referrer, owners.get(id(referrer), "")
        elif type(referrer).__module__ != "builtins" and not isinstance(referrer, FrameType):
            entries, kind = getattr(referrer, "__dict__", None), type(referrer).__name__
        else:
            continue
        dicts += 1
        if dicts > _MOST or not isinstance(entries, dict):
            continue
        _add(entries, kind, by_id)


def _owners(dicts: list[dict[Any, Any]]) -> dict[int, str]:
    """Return of which class the objects are whose attributes some dicts are, by their ids."""
    if not dicts:
        return {}
    found = {}
    for owner in gc.get_referrers(*dicts):
        if type(owner).__module__ != "builtins" and not isinstance(owner, FrameType):
            found[id(getattr(owner, "__dict__", None))] = type(owner).__name__
    return found


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
            for name, value in list(entries.items()):
                _add_attributes(name, value, by_id)
            if type(entries) is dict:  # before Python 3.13 the frame keeps this dict, and all in it
                entries.clear()
        frame = frame.f_back


def _add_attributes(name: str, value: Any, by_id: dict[int, Holders]) -> None:
    """Add the name and the class of a variable that has the objects for attributes."""
    if issubclass(type(value), nn.Module):
        return  # what they are a part of is known
    try:
        attributes = object.__getattribute__(value, "__dict__")  # a lazy proxy stays asleep
    except AttributeError:
        return
    for each in attributes.values():
        own = by_id.get(id(each))
        if own is not None:
            own.names.append(name)
            own.kinds.append(type(value).__name__)


def _add(entries: dict[Any, Any], kind: str, by_id: dict[int, Holders]) -> None:
    """Add the names under which a dict has the objects."""
    for name, value in list(entries.items()):
        own = by_id.get(id(value))
        if own is not None and isinstance(name, str):
            own.names.append(name)
            own.kinds.append(kind)
            own.direct.add(name)


def living(wanted: type[Any]) -> list[Any]:
    """
    Return the objects of a class, and of all that derive from it.

    A process with a few libraries has a million objects, so that a loop in Python over all of them
    takes a fifth of a second: here the loop is one of C. `type()` does not wake up lazy proxies.
    """
    if getattr(_local, "hidden", False):
        return []
    return pick(gc.get_objects(), set(kinds(wanted)))


@contextmanager
def nothing_lives() -> Iterator[None]:
    """Find nothing in a block, in this thread: what there is belongs to somebody else."""
    _local.hidden = True
    try:
        yield
    finally:
        _local.hidden = False


def pick(objects: Sequence[Any], wanted: Collection[type[Any]]) -> list[Any]:
    """Return those of some objects whose very class is one of the wanted."""
    return list(compress(objects, map(wanted.__contains__, map(type, objects))))


def kinds(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield a class and all that derive from it."""
    yield kind
    for derived in type.__subclasses__(kind):
        yield from kinds(derived)
