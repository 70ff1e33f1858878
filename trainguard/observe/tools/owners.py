"""What the variables of the user's running functions hold: tensors by name, objects with values."""

import re
from collections.abc import Hashable, Iterator
from types import ModuleType
from typing import Any

import torch

from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 6  # of the user's code whose variables are looked at
_DEPTH = 2  # of objects inside of objects
_WIDE = 64  # entries: what has more is a collection
_LISTED = 16  # entries of a list that are looked into
_OBJECTS = 256  # that are looked at
_FOREIGN = {"logging", "numpy", "torch", "trainguard"}  # whose objects are left alone

Owner = tuple[str, Hashable, dict[Any, Any]]  # its name, what tells it from others, its values
_NEAR = 2  # frames of the user's code whose tensors are named
_OF_BATCHES = {"bs2", "bns", "bnext", "bnxt", "bo2", "bsp"}  # those of a batch
# Words in the names of what comes after a state.
NEXT = {"next", "nxt", "new", "s2", "ns", "sp", "sn", "obs2", "o2", "nobs", "prime"} | _OF_BATCHES


def find_owners() -> Iterator[Owner]:
    """Yield each running function, whose name is empty, and the objects that it can name."""
    seen = set[int]()
    for frame in user_frames(_FRAMES):
        variables = variables_of(frame)
        yield "", ("frame", id(frame.f_code)), variables
        waiting = [(name, value, _DEPTH) for name, value in variables.items()]
        while waiting and len(seen) < _OBJECTS:
            name, value, depth = waiting.pop(0)
            parts = parts_of(value) if id(value) not in seen else {}
            if not parts:
                continue
            seen.add(id(value))
            yield name, id(value), parts
            if type(value) is list:
                parts = {f"{name}[{place}]": each for place, each in enumerate(value[:_LISTED])}
            if depth:
                waiting += [(str(key), each, depth - 1) for key, each in parts.items()]


def parts_of(value: Any) -> dict[Any, Any]:
    """Return what an object, a dictionary or a list has, by name; nothing of what has too much."""
    foreign = type(value).__module__.partition(".")[0] in _FOREIGN
    if foreign or isinstance(value, type | ModuleType | torch.Tensor):
        return {}
    own = {"": value} if type(value) is list else value
    own = own if isinstance(own, dict) else getattr(own, "__dict__", {})
    return dict(dict.items(own)) if isinstance(own, dict) and len(own) <= _WIDE else {}


def words_in(name: str) -> set[str]:
    """Return the words of a name."""
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def named_tensors() -> Iterator[tuple[int, str, torch.Tensor]]:
    """Yield the tensors with sizes in the variables of the user's running functions, by name."""
    for number, frame in enumerate(user_frames(_NEAR)):
        for name, value in variables_of(frame).items():
            named = isinstance(value, tuple) and hasattr(value, "_fields")  # not its class
            entries = value._asdict() if named else value
            pairs = entries.items() if type(entries) is dict else [(name, value)]
            for key, each in pairs:
                tensor = isinstance(key, str) and isinstance(each, torch.Tensor)
                if tensor and each.dim() and not each.is_nested:
                    yield number, key, each
