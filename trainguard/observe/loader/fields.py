"""Read batches of any nesting: {field: values}, the name of a field being its path."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as columns
from dataclasses import is_dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch

from trainguard.observe.tools.arrays import array_of

_MOST_FIELDS = 4  # arrays in an inner list; more are taken for samples
SINGLE = "0"  # the name of the only field of a batch that is no collection


def name_fields(batch: Any) -> dict[str, Any]:
    """
    Return {path: values} of a batch: "audio", "0", "inputs.frames".

    Values are tensors, arrays, or lists with an entry for each sample; None is left out. A list of
    samples ({"image": ..., "label": ...} each) is turned into fields first.
    """
    if _is_leaf(batch):
        return {} if batch is None else {SINGLE: batch}
    return {path: value for path, value in _walk(batch, (), ()) if value is not None}


def tensor(value: Any) -> torch.Tensor | None:
    """Return numbers as a tensor, without a copy where that can be; None for what is no number."""
    if isinstance(value, torch.Tensor):
        # A subclass may have an opinion on slices and sums of itself, as MONAI's MetaTensor has.
        plain = value if type(value) is torch.Tensor else value.as_subclass(torch.Tensor)
        return plain.detach() if plain.requires_grad else plain
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value) if value.dtype.kind in "biufc" else None
    if isinstance(value, list | tuple) and value and all(_is_number(entry) for entry in value):
        return torch.tensor(value)
    if _is_number(value):
        return torch.tensor(value)
    return None


def array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the numbers of a tensor as an array, to be read only; None for what NumPy has not."""
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None
    try:
        return array_of(value)
    except (TypeError, RuntimeError):  # bfloat16, other devices, sparse
        return None


def rows(value: Any, axis: int = 0) -> int:
    """Return how many samples a field has along its batch axis; 0 where it has no such axis."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.shape[axis]) if value.ndim > axis else 0
    return len(value) if isinstance(value, list | tuple) else 0


def _walk(value: Any, path: tuple[str, ...], beside: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each field below a value with its path; `beside` is what stands next to the value."""
    if _are_records(value):
        for key in value[0]:
            column = [sample.get(key) for sample in value]
            below = (*path, str(key))
            yield from (
                _walk(column, below, ()) if _are_records(column) else [(".".join(below), column)]
            )
        return
    if _is_plain_list(value) and (_are_samples(value, beside) if path else _are_ragged(value)):
        yield ".".join(path) or SINGLE, value
        return
    entries = _entries(value)
    if entries is None:
        yield ".".join(path) or SINGLE, value
        return
    for key, entry in entries:
        if _is_leaf(entry):
            yield ".".join((*path, key)), entry
        else:
            yield from _walk(entry, (*path, key), [e for k, e in entries if k != key])


def _are_records(value: Any) -> bool:
    """Say whether a value is a list of samples, each with fields of its own."""
    listed = isinstance(value, list | tuple) and bool(value)
    return listed and all(isinstance(entry, Mapping) for entry in value)


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    """Return the named entries of a collection of fields; None for a field of its own."""
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        keys = value.keys() if callable(value.keys) else value.keys
        return [(str(key), value[key]) for key in keys]
    if is_dataclass(value) and not isinstance(value, type):
        return [(column.name, getattr(value, column.name)) for column in columns(value)]
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(value, batch_first=True)
        return [("data", padded), ("lengths", lengths)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return _positions(value)
    attributes = getattr(value, "__dict__", None)
    if attributes and any(_is_array(entry) for entry in attributes.values()):
        return [(key, entry) for key, entry in attributes.items() if not key.startswith("_")]
    return None


def _positions(value: Sequence[Any]) -> list[tuple[str, Any]] | None:
    """Return the entries of a list as fields, unless they are plain values."""
    if not any(_is_array(entry) or isinstance(entry, list | tuple | Mapping) for entry in value):
        return None
    return [(str(index), entry) for index, entry in enumerate(value)]


def _are_samples(value: Sequence[Any], beside: Sequence[Any]) -> bool:
    """
    Say whether the entries of an inner list are the samples of one field, or fields of their own.

    Samples are as many as there are of what stands beside the list: [images, targets] with a list
    of tensors and one of dicts. Fields have that many rows: [(left, right), labels].
    """
    sizes = {rows(entry) for entry in value if _is_array(entry)}
    fields = len(sizes) == 1 and all(_is_array(entry) and entry.ndim > 0 for entry in value)
    lists = {len(e) for e in beside if isinstance(e, list | tuple) and not _holds_arrays(e)}
    if len(value) in lists or not fields:
        return not any(isinstance(entry, list | tuple | Mapping) for entry in value)
    if len(value) in {rows(e) for e in beside if _is_array(e)} - sizes:
        return True
    return len(value) > _MOST_FIELDS


def _are_ragged(value: Sequence[Any]) -> bool:
    """Say whether a whole batch is a list of samples of one kind and of several lengths."""
    alike = all(_is_array(entry) and entry.ndim > 0 for entry in value) and len(value) > 1
    kinds = {(entry.dtype, entry.ndim) for entry in value} if alike else set()
    return len(kinds) == 1 and len({len(entry) for entry in value}) > 1


def _holds_arrays(value: Sequence[Any]) -> bool:
    """Say whether a list holds arrays, and so may be fields itself."""
    return any(_is_array(entry) for entry in value)


def _is_plain_list(value: Any) -> bool:
    """Say whether a value is a list, or a tuple without names."""
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def _is_leaf(value: Any) -> bool:
    """Say whether a value is a field of its own."""
    if value is None or _is_array(value) or isinstance(value, str | bytes) or _is_number(value):
        return True
    if _is_plain_list(value):
        return not any(_is_array(e) or isinstance(e, list | tuple | Mapping) for e in value)
    return False


def _is_array(value: Any) -> bool:
    """Say whether a value is a tensor or an array."""
    return isinstance(value, torch.Tensor | np.ndarray)


def _is_number(value: Any) -> bool:
    """Say whether a value is one number."""
    return isinstance(value, Number | np.generic) and not isinstance(value, complex)
