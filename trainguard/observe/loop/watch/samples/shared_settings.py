"""Watches data sets that share settings, as parts of a split or as copies: whose they become."""

import ast
import copy
import linecache
import weakref
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset, dataloader

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.patches import Patches, tell_after, tell_before
from trainguard.observe.tools.user_line import caller, user_frames

_FRAMES = 16  # of the user's in which the split may be running still
_MOST = 64  # parts
_SETTINGS = (type(None), bool, str)  # and whatever can be called
_PLAIN = (*_SETTINGS, int, float)
_DEEP = 4  # data sets around others
_WIDE = 64  # entries: what has more is no table of settings


class Setting(NamedTuple):
    """
    A line `train_set.dataset.transform = crop`: part "train_set", name "transform", value "crop".

    block: the line of the statement that it stands in, 0 in none.
    """

    line: int
    part: str
    name: str
    value: str
    block: int


class _SplitPart(NamedTuple):
    """
    A part of a split; there: what was set of its data set then, by name, as identities.

    place: how many parts of the data set were made before it by the same line.
    """

    part: weakref.ref[Any]
    there: dict[str, int]
    code: CodeType
    line: int
    place: int


class _CopiedData(NamedTuple):
    """A data set, its shallow copy, and the settings in what both have, by attribute and name."""

    data: weakref.ref[Any]
    copy: weakref.ref[Any]
    there: dict[tuple[str, str], Any]
    source: str


class SharedSettings(Watcher):
    """
    The Probe event "shared setting": a line sets something of the data set of one part of a split.

    Another part shares that data set, and is served with what the line has put there: instead of
    what a line before set for it, or of what was there at the split, if it is trained on.

    The Probe event "lost setting": a part has a setting of the name that its data set reads.

    The Probe event "copied setting": something that a data set and its shallow copy share was set
    since, before either was served; one is trained on and the other is not.
    """

    makes = ("Probe:shared setting", "Probe:lost setting", "Probe:copied setting")
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._parts: dict[int, _SplitPart] = {}
        self._served: dict[int, list[tuple[bool, Probe]]] = {}  # whether it had set it itself
        self._copied: list[_CopiedData] = []
        self._set: list[tuple[int, int, Probe]] = []  # of two data sets
        self._lost: dict[str, Probe] = {}
        self._around: dict[int, set[int]] = {}  # what was served of each data set: itself, parts

    def install(self, patches: Patches) -> None:
        """Listen to splits, and to the iterators of loaders."""
        self._batches = self.recorder.watcher(Batches)
        patches.replace(Subset, "__init__", tell_after(self._see_split))
        patches.replace(copy, "copy", tell_after(self._see_copied))
        for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
            patches.replace(getattr(dataloader, name), "__init__", tell_before(self._see_start))

    def finish(self) -> Iterable[Event]:
        """Return what was found of parts that set it before, or that were trained on."""
        found = {
            probe.source: probe
            for part, probes in self._served.items()
            for itself, probe in probes
            if itself or part in self._batches.trained_data
        }
        yield from (*found.values(), *self._lost.values())
        trained = self._batches.trained_data
        for *pair, probe in self._set:
            served = [self._around.get(data, set()) for data in pair]
            if all(served) and sum(bool(each & trained) for each in served) == 1:
                yield probe

    @shielded
    def _see_copied(self, made: Any, data: Any, *_: Any, **__: Any) -> None:
        """Remember a shallow copy of a data set, and the settings in what it shares with it."""
        known = issubclass(type(data), Dataset) and self.recorder.patches.active
        if known and made is not data and len(self._copied) < _MOST:
            place = caller()
            there = {
                (name, entry): value
                for name, own in _attributes(data).items()
                if own is _attributes(made).get(name)
                for entry, value in _entries(own)
            }
            if there:
                self._copied.append(_CopiedData(weakref.ref(data), weakref.ref(made), there, place))

    def _look_at_copies(self, part: Any) -> None:
        """Find what was set of a data set and its copy since, as the first of them is served."""
        own: Any = part
        inside: list[int] = []
        while own is not None and len(inside) < _DEEP:
            inside.append(id(own))
            self._around.setdefault(id(own), set()).add(id(part))
            own = _attributes(own).get("dataset")
        for one in self._copied[:]:
            data, made = one.data(), one.copy()
            if data is None or made is None or not {id(data), id(made)} & set(inside):
                continue
            self._copied.remove(one)
            self.looked.add("copied setting")
            for (name, entry), was in one.there.items():
                shared = _attributes(data).get(name)
                same = shared is _attributes(made).get(name)
                now = dict(_entries(shared)).get(entry) if same else was
                if type(now) in _PLAIN and now != was:
                    label = f"{type(data).__name__}.{name}\n{entry}\n{was!r}\n{now!r}"
                    probe = make_probe("copied setting", 1, label=label, source=one.source)
                    self._set.append((id(data), id(made), probe))
                    break

    def _look_for_lost(self, part: Any) -> None:
        """Find what is set of a part itself, where only its data set reads such a setting."""
        if type(part) is not Subset:
            return
        self.looked.add("lost setting")
        read = _settings_of(part)
        for name, value in _attributes(part).items():
            if name in read and name not in _attributes(Subset) and read[name] is not value:
                label = f"{name}\n{type(part.dataset).__name__}"
                known = self._parts.get(id(part))
                place = _line_that_sets(known, name) if known is not None else caller(2)
                self._lost.setdefault(
                    name, make_probe("lost setting", 1, label=label, source=place)
                )

    @shielded
    def _see_split(self, _: Any, part: Any, *__: Any, **___: Any) -> None:
        """Remember which line has made a part, and what was set of its data set then."""
        if not self.recorder.patches.active or len(self._parts) >= _MOST:
            return
        frame = next(user_frames(1), None)
        if frame is None:
            return
        made = [other for other in self._parts.values() if _shares(other, part)]
        place = sum((other.code, other.line) == (frame.f_code, frame.f_lineno) for other in made)
        settings = _settings_of(part).items()
        there = {n: id(value) for n, value in settings if value is not None and value is not False}
        own = _SplitPart(weakref.ref(part), there, frame.f_code, frame.f_lineno, place)
        self._parts[id(part)] = own

    @shielded
    def _see_start(self, _: Any, loader: Any, *__: Any, **___: Any) -> None:
        """Look at what is set of a data set, when one of its parts is about to be served."""
        part = getattr(loader, "dataset", None)
        if self.recorder.patches.active:
            self._look_at_copies(part)
            self._look_for_lost(part)
        known = self._parts.get(id(part))
        if known is None or known.part() is not part or not self.recorder.patches.live:
            return
        self.looked.add("shared setting")
        if id(part) not in self._served:
            others = {_name_of(one) for one in self._parts.values() if _shares(one, part)}
            self._served[id(part)] = list(_look(known, part, others))


def _look(known: _SplitPart, part: Any, names: set[str]) -> Iterator[tuple[bool, Probe]]:
    """
    Yield what other parts have set of the data set of a part, and whether it had set it too.

    names: of all parts of that data set.
    """
    file, own_name = known.code.co_filename, _name_of(known)
    running = [frame.f_lineno for frame in user_frames(_FRAMES) if frame.f_code is known.code]
    ran = [
        one
        for one in read_settings(file)
        if one.line in _lines_of(known.code) and one.line < min(running, default=one.line + 1)
    ]
    for name, value in _settings_of(part).items():
        own = [one for one in ran if (one.part, one.name) == (own_name, name)]
        others = [one for one in ran if one.part in names - {own_name} and one.name == name]
        if not own_name or not others or id(value) == known.there.get(name):
            continue
        latest = others[-1]
        if own and (own[-1] > latest or own[-1].value == latest.value):
            continue
        fits = _fits(latest, value)
        if fits is False or (fits is None and own and _fits(own[-1], value)):
            continue  # it was set again since, elsewhere
        if own[-1].block == latest.block if own else name in known.there:
            label = "\n".join([name, latest.part, latest.value, own[-1].value if own else ""])
            place = f"{file}:{latest.line}"
            yield bool(own), make_probe("shared setting", 1, label=label, source=place)


def _fits(setting: Setting, value: Any) -> bool | None:
    """Say whether a value is what a line has set, by its own name or that of its class."""
    match ast.parse(setting.value, mode="eval").body:
        case ast.Constant(value=constant):
            return bool(type(value) is type(constant) and value == constant)
        case ast.Name(id=name) if hasattr(value, "__name__"):
            return True if value.__name__ == name else None
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return True if type(value).__name__ == name else None
    return None


def _shares(other: _SplitPart, part: Any) -> bool:
    """Say whether two parts have one data set."""
    there = other.part()
    return there is not None and there.dataset is part.dataset


def _settings_of(part: Any) -> dict[str, Any]:
    """Return what is set of the data set of a part, of what is no data."""
    own = getattr(part.dataset, "__dict__", {})
    return {n: value for n, value in own.items() if isinstance(value, _SETTINGS) or callable(value)}


def _attributes(own: Any) -> dict[str, Any]:
    """Return what an object has by itself, and computes nothing for."""
    return getattr(own, "__dict__", {})


def _entries(own: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plain settings in a dictionary, or in an object of the user's own, by name."""
    parts = own if type(own) is dict else getattr(own, "__dict__", None)
    if isinstance(parts, dict) and len(parts) <= _WIDE and not isinstance(own, type):
        for name, value in parts.items():
            if isinstance(name, str) and type(value) in _PLAIN:
                yield name, value


def _lines_of(code: CodeType) -> set[int | None]:
    """Return the lines of a function or module, without those of functions inside of it."""
    return {line for _, _, line in code.co_lines()}


def _name_of(part: _SplitPart) -> str:
    """Return what the line that made a part calls it: `train_set`, `parts[0]`, or nothing."""
    for node, _ in _assignments(part.code.co_filename):
        if node.lineno <= part.line <= (node.end_lineno or node.lineno):
            target = node.targets[0]
            if isinstance(target, ast.Tuple | ast.List):
                return ast.unparse(target.elts[part.place % len(target.elts)])
            alone = isinstance(node.value, ast.Call) and "Subset" in ast.unparse(node.value.func)
            return ast.unparse(target) + ("" if alone else f"[{part.place}]")
    return ""


def _line_that_sets(part: _SplitPart, name: str) -> str:
    """Return where an attribute of a part is set, or where the part was made."""
    file, own = part.code.co_filename, _name_of(part)
    for node, _ in _assignments(file):
        for target in node.targets:
            if ast.unparse(target) == f"{own}.{name}":
                return f"{file}:{node.lineno}"
    return f"{file}:{part.line}"


@lru_cache(maxsize=64)
def read_settings(file: str) -> tuple[Setting, ...]:
    """Return the lines of a file that set something of `NAME.dataset`, in their order."""
    return tuple(sorted(one for node, block in _assignments(file) for one in _read(node, block)))


@lru_cache(maxsize=64)
def _assignments(file: str) -> tuple[tuple[ast.Assign, int], ...]:
    """Return the assignments in a file, each with the line of the statement that it stands in."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (node, getattr(block, "lineno", 0))
        for block in ast.walk(tree)
        for node in ast.iter_child_nodes(block)
        if isinstance(node, ast.Assign)
    )


def _read(node: ast.Assign, block: int) -> Iterator[Setting]:
    """Yield what an assignment sets of `NAME.dataset`."""
    for target in node.targets:
        match target:
            case ast.Attribute(value=ast.Attribute(value=part, attr="dataset"), attr=name):
                value = ast.unparse(node.value)
                yield Setting(node.lineno, ast.unparse(part), name, value, block)
