"""Watches what dictionaries are asked for, and have by another name that nothing reads."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.asked_keys import AskedKey, are_one_word, read_keys
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.user_line import foreign, user_frames

_LOOKS = {1, 4, 16}  # steps in which variables are looked at
_FRAMES, _FILES = 6, 64  # of the user's: more are not read, nor judged
_KEYS = 200  # of a dictionary
Place = tuple[str, AskedKey]  # the file in which a key is asked for


@dataclass(slots=True)
class _Missed:
    """Looks at dictionaries that a key is asked of, and the keys of the latest of them."""

    looks: int = 0
    is_there: bool = False
    keys: set[str] = field(default_factory=set)


class MissedKeys(Watcher):
    """
    The Probe event "missed key": what is asked for is never there, and nothing reads another key.

    measured: dictionaries that were looked at; label: the expression, and the key that is one
    letter, or the order of words, away.
    """

    makes = ("Probe:missed key",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._missed: dict[Place, _Missed] = {}
        self._files = set[str]()

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the dictionaries in the variables of the functions that run."""
        if self.recorder.age not in _LOOKS:
            if self.recorder.age > max(_LOOKS):
                self.recorder.dismiss(self)
            return
        self._files |= set(_find_files())
        if len(self._files) > _FILES:  # what reads a key may be in any of them
            self.recorder.dismiss(self)
            self._missed.clear()
            return
        places = [(file, asked) for file in self._files for asked in read_keys(file).asked]
        for name, keys in _find_keys() if places else ():
            for file, asked in places:
                if asked.key in keys or _is_meant(asked, name, keys):
                    self._count(self._missed.setdefault((file, asked), _Missed()), asked, keys)

    def _count(self, missed: _Missed, asked: AskedKey, keys: set[str]) -> None:
        """Count a dictionary that has a key, or may be meant to have it."""
        missed.is_there |= asked.key in keys
        missed.looks += 1
        missed.keys = keys

    def finish(self) -> Iterable[Event]:
        """Return what is asked for and never there, where the same is there by another name."""
        files = [read_keys(file) for file in self._files]
        named = {key for each in files for key in each.read | each.whole}
        defined = {key for each in files for key in each.defined}
        whole = {name for each in files for name in each.whole}
        for (file, asked), missed in self._missed.items():
            self.looked.add("missed key")
            if missed.is_there or asked.key in defined or asked.name in whole:
                continue
            for key in sorted(missed.keys - named):
                if are_one_word(asked.key, key):
                    label = f"{asked.text}\n{key}"
                    source = f"{file}:{asked.line}"
                    yield make_probe("missed key", missed.looks, 0.0, label=label, source=source)
                    break


def _find_files() -> Iterator[str]:
    """Yield the user's files that the functions that run come from, or can name something of."""
    waiting: list[Any] = []
    for frame in user_frames(_FRAMES):
        yield frame.f_code.co_filename
        waiting += frame.f_globals.values()
    waiting += [type(value) for _, _, parts in find_owners() for value in parts.values()]
    seen = set[str]()
    while waiting:
        each = waiting.pop()
        named = each.__name__ if isinstance(each, ModuleType) else _module_of(each)
        module = sys.modules.get(named) if named not in seen else None
        seen.add(named)
        names = getattr(module, "__dict__", {})  # a lazy module is asked for nothing that it lacks
        file = names.get("__file__")
        if isinstance(file, str) and foreign(file):
            yield file
            waiting += names.values()


def _module_of(value: Any) -> str:
    """Return the name of the module of a class or a function, nothing of other values."""
    named = value.__module__ if isinstance(value, type | FunctionType) else ""
    return named if isinstance(named, str) else ""


def _find_keys() -> Iterator[tuple[str, set[str]]]:
    """Yield the dictionaries and namespaces of the functions that run: their names and keys."""
    for _, _, parts in find_owners():
        for name, value in parts.items():
            own = vars(value) if isinstance(value, Namespace | SimpleNamespace) else value
            if isinstance(name, str) and isinstance(own, dict) and 1 < len(own) <= _KEYS:
                keys = set(dict.keys(own))
                if all(isinstance(key, str) for key in keys) and not name.startswith("__"):
                    yield name, keys


def _is_meant(asked: AskedKey, name: str, keys: set[str]) -> bool:
    """Say whether a dictionary is the one that is asked, by its name or by what else is read."""
    return asked.read <= keys and (asked.name == name or bool(asked.read))
