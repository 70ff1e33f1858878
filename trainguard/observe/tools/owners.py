"""What has values among the variables of the user's running functions, and inside of these."""

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
