"""Tensors by the names that the user's running functions have for them."""

import re
from collections.abc import Iterator

import torch

from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 2  # of the user's code whose variables are looked at
# Words in the names of what comes after a state.
NEXT = {"next", "nxt", "new", "s2", "ns", "sp", "sn", "obs2", "o2", "nobs", "prime"}


def words_in(name: str) -> set[str]:
    """Return the words of a name."""
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def named_tensors() -> Iterator[tuple[int, str, torch.Tensor]]:
    """Yield the tensors with sizes in the variables of the user's running functions, by name."""
    for number, frame in enumerate(user_frames(_FRAMES)):
        for name, value in variables_of(frame).items():
            named = isinstance(value, tuple) and hasattr(value, "_fields")  # not its class
            entries = value._asdict() if named else value
            pairs = entries.items() if type(entries) is dict else [(name, value)]
            for key, each in pairs:
                tensor = isinstance(key, str) and isinstance(each, torch.Tensor)
                if tensor and each.dim() and not each.is_nested:
                    yield number, key, each
