"""SeenLoaders: which functions and data modules of the user's own made the loaders of a run."""

import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from types import FrameType
from typing import Any, Final

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from trainguard.events.component import Component
from trainguard.observe.tools.plain_code import (
    Imports,
    find_no_import,
    import_name,
    write_arguments,
)
from trainguard.subjects.loader import METHODS

INIT: Final = DataLoader.__init__.__code__
_MOST = 8  # loaders of one call; more are no splits
_USUAL = ("train", "val", "test")
_NAMED: Final = re.compile(r"(?:^|[^a-z])(train|val|dev|test|eval)")
_WORDS: Final = re.compile(r"_*(?:data|batch|split)?(?:loader|iter|dl|batche|set)s?_*")
_Loaders = Mapping[str, DataLoader[Any]]


@dataclass(slots=True)
class Made:
    """What something was made by: the user's class or function, and its arguments."""

    module: str
    name: str
    given: dict[str, Any]
    source: str = ""


@dataclass(slots=True)
class _Call:
    """One call that made loaders, as code, with its splits and the numbers of its loaders."""

    made: Made
    code: str
    splits: list[tuple[str, str, int, str]] = field(default_factory=list)
    loaders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class SeenLoaders:
    """
    The calls that returned loaders, and the lines of the user's that made one.

    lines: {number of a loader: where it was made}.
    """

    calls: dict[str, _Call] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    _numbers: weakref.WeakKeyDictionary[DataLoader[Any], int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _count: Iterator[int] = field(default_factory=count)

    def add_loader(self, loader: DataLoader[Any], frame: FrameType) -> None:
        """Remember where the user's code makes a loader."""
        self.lines[self._number(loader)] = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def add_result(self, made: Made, result: Any, variables: Mapping[str, Any]) -> bool:
        """Take what a function has returned; say whether it is loaders."""
        loaders = _loaders_in(result)
        if not loaders:
            return False
        names = [*loaders] if isinstance(result, Mapping) else _names(made, loaders, variables)
        call = self._call(made, loaders)
        if call is not None:
            call.splits = _describe(dict(zip(names, loaders.values(), strict=True)))
        return True

    def add_method(self, made: Made, method: str, result: Any) -> None:
        """Take what a method of a data module has returned: the loader of one split."""
        split = next(split for split, name in METHODS.items() if name == method)
        loaders = _loaders_in(result)
        call = self._call(made, loaders)
        if call is not None and len(loaders) == 1:
            told = _describe({split: next(iter(loaders.values()))})
            call.splits += [each for each in told if each not in call.splits]

    def tell(self) -> Iterator[Component]:
        """Yield what can be declared, the calls that made most loaders first, and what cannot."""
        covered: set[int] = set()
        singles: list[_Call] = []
        for call in sorted(self.calls.values(), key=lambda call: -len(call.splits)):
            lost = find_no_import(call.made.module, call.made.name)
            if lost or not call.splits or call.loaders <= covered:
                continue
            covered |= call.loaders
            if len(call.splits) > 1:
                yield _tell(call)
            else:
                singles.append(call)
        if singles:
            yield _join(singles)
        known = {line for number, line in self.lines.items() if number in covered}
        for line in dict.fromkeys(self.lines.values()):
            if line not in known:
                why = "no function that a guard can call returns it: move it into one"
                yield Component(
                    kind="loader", name="DataLoader", module="", source=line, obstacle=why
                )

    def _number(self, loader: DataLoader[Any]) -> int:
        """Return what a loader is told by, which outlives it."""
        return self._numbers.setdefault(loader, next(self._count))

    def _call(self, made: Made, loaders: _Loaders) -> _Call | None:
        """Return the call that made some loaders; None for one that no guard can make again."""
        arguments = write_arguments(made.given, [])
        if arguments is None:
            return None
        code = f"{made.name}({', '.join(f'{name}={value}' for name, value in arguments)})"
        call = self.calls.setdefault(f"{made.module}.{code}", _Call(made, code))
        call.loaders |= set(map(self._number, loaders.values()))
        return call


def _tell(call: _Call) -> Component:
    """Return the loaders of one call as a component."""
    imports: Imports = []
    arguments = write_arguments(call.made.given, imports)
    return Component(
        kind="loader",
        name=call.made.name,
        module=import_name(call.made.module),
        source=call.made.source,
        arguments=arguments or (),
        imports=tuple((import_name(module), name) for module, name in dict.fromkeys(imports)),
        splits=tuple(call.splits),
    )


def _join(calls: list[_Call]) -> Component:
    """Return calls that made one loader each as one component, where their splits have names."""
    told = [_tell(call) for call in calls]
    names = [call.splits[0][0] for call in calls]
    if len(calls) == 1:
        return told[0]
    if len({*names}) < len(names) or "" in names:
        return replace(told[0], obstacle="which of its calls is for which split is not clear")
    splits = [(call.splits[0][0], call.code, *call.splits[0][2:]) for call in calls]
    imports = [pair for each in told for pair in ((each.module, each.name), *each.imports)]
    return replace(told[0], arguments=(), imports=tuple(imports), splits=tuple(splits))


def _loaders_in(result: Any) -> _Loaders:
    """Return the loaders that something is, in its order; nothing where it is anything else."""
    if isinstance(result, DataLoader):
        return {"": result}
    if isinstance(result, tuple | list):
        result = {str(index): part for index, part in enumerate(result[: _MOST + 1])}
    if not isinstance(result, dict) or not 0 < len(result) <= _MOST:
        return {}
    well = all(isinstance(k, str) and isinstance(v, DataLoader) for k, v in result.items())
    return result if well else {}


def _names(made: Made, loaders: _Loaders, variables: Mapping[str, Any]) -> list[str]:
    """Return names for loaders: of the variables that hold them, or in the usual order."""
    parts = list(loaders.values())
    held = {id(value): name for name, value in variables.items() if isinstance(value, DataLoader)}
    names = [_WORDS.sub("", held.get(id(part), "").lower()).strip("_") for part in parts]
    if len(parts) == 1:
        return [_name_by_call(made) or names[0]]
    if all(names) and len({*names}) == len(names):
        return names
    return [*_USUAL[: len(parts)], *map(str, range(len(_USUAL), len(parts)))]


def _name_by_call(made: Made) -> str:
    """Return the split that a function makes, as its name or an argument tells it."""
    given = made.given
    words = [value for value in given.values() if isinstance(value, str)]
    trains = [value for name, value in given.items() if "train" in name and type(value) is bool]
    words += ["train" if value else "val" for value in trains]
    found = [match[1] for word in (*words, made.name) if (match := _NAMED.search(word.lower()))]
    return found[0] if found else ""


def _describe(loaders: _Loaders) -> list[tuple[str, str, int, str]]:
    """Return each split with the samples of a batch, 0 where nobody says, and its order."""
    told = []
    for name, loader in loaders.items():
        sampler = loader.sampler
        random = type(sampler) is RandomSampler and not sampler.replacement
        order = "shuffled" if random else "in order" if type(sampler) is SequentialSampler else ""
        told.append((name, "", loader.batch_size or 0, order))
    return told
