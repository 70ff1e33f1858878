"""Write a call as code that can be pasted into a prompt."""

from typing import Any

import torch
from torch import Tensor

from trainguard.observe.loss.call import takes_keywords
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.loss import Loss


def call(loss: Loss, structure: Structure, point: dict[str, Tensor]) -> str:
    """Return the call of a loss at one point, with its hyperparameters where there are some."""
    arguments = {**{name: tensor(t) for name, t in point.items()},
                 **{name: repr(value) for name, value in structure.arguments.items()}}  # fmt: skip
    named = bool(loss.vary) or takes_keywords(loss.function)
    inside = ", ".join(
        f"{name}={arguments[name]}" if named else arguments[name]
        for name in loss.inputs
        if name in arguments
    )
    return f"{_callee(loss, structure)}({inside})"


def tensor(values: Tensor) -> str:
    """Return the shortest expression that makes a tensor: zeros, full or tensor."""
    suffix = "" if values.dtype in _LITERAL else f", dtype={values.dtype}"
    if values.numel() > 1 and bool((values == values.flatten()[0]).all()):
        return _constant(values, suffix)
    return f"torch.tensor({_literal(values)}{suffix})"


_LITERAL = (torch.float32, torch.int64, torch.bool)


def _callee(loss: Loss, structure: Structure) -> str:
    """Return what is called: a name, a module, or a factory with its hyperparameters."""
    function: Any = loss.function
    name = getattr(function, "__name__", None) or repr(function)
    if any(mark in name for mark in "\n<"):  # a lambda, a partial, a module of modules
        name = loss.name
    if not loss.vary:
        return str(name)
    hyper = ", ".join(f"{key}={value!r}" for key, value in structure.hyperparameters.items())
    return f"{name}({hyper})"


def _constant(values: Tensor, suffix: str) -> str:
    """Write a tensor whose elements are all equal."""
    shape, value = tuple(values.shape), values.flatten()[0]
    if value == 0 and values.dtype.is_floating_point:
        return f"torch.zeros({shape}{suffix})"
    return f"torch.full({shape}, {_number(value)}{suffix})"


def _literal(values: Tensor) -> str:
    """Write nested lists of numbers, each in as few digits as give the same number back."""
    if values.ndim == 0:
        return _number(values)
    return f"[{', '.join(_literal(row) for row in values)}]"


def _number(value: Tensor) -> str:
    """Write one element so that it reads back as itself."""
    number = value.item()
    if not isinstance(number, float):
        return repr(number)
    if number != number or abs(number) == torch.inf:
        return f'float("{number}")'
    most = torch.finfo(value.dtype).max  # torch.full takes no number above it, not even to round
    for digits in range(1, 18):
        short = f"{number:.{digits}g}"
        same = torch.tensor(float(short), dtype=value.dtype) == value
        if same and abs(float(short)) <= most:
            break
    plain = f"{float(short):.12f}".rstrip("0")
    short = plain if float(plain) == float(short) and len(plain) <= len(short) + 1 else short
    return short if any(mark in short for mark in ".e") else f"{short}."
