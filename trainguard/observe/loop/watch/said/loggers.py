"""
The loggers that a training may talk to, replaced once they are imported; none is imported by us.

Each is replaced where its calls come together, in its class, so that it does not matter under which
name the user knows it. A logger that calls itself is heard once.
"""

import csv
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Any

import numpy as np
import torch

from trainguard.observe.tools.patches import Patches

Value = float | torch.Tensor  # a tensor where it is on an accelerator
Said = tuple[str, Value, float]  # a name, a value and its rounding
Tell = Callable[[str, list[Any]], None]  # the arguments of one call, and its channel

_DEEPEST = 4
_MOST_VALUES = 256  # of one call
_DECIMALS = 4  # a number with no more of them was rounded, or is a constant
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class LogCall:
    """
    A function that is given numbers to log.

    module: where it is; function: its name there, after that of its class if it has one.
    given: the names of its first parameters, after `self`: those of a name and a value, of one
        mapping, or of a name and a mapping, in the order of `given`; others are passed over.
    """

    module: str
    function: str
    channel: str
    given: tuple[str, ...]


def _places() -> Iterator[LogCall]:
    """Yield all known places."""
    for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        yield LogCall(module, "SummaryWriter.add_scalar", "tensorboard", ("tag", "scalar_value"))
        given = ("main_tag", "tag_scalar_dict")
        yield LogCall(module, "SummaryWriter.add_scalars", "tensorboard", given)
    yield LogCall("wandb.sdk.wandb_run", "Run.log", "wandb", ("data",))
    yield LogCall("wandb", "log", "wandb", ("data",))
    for module in ("mlflow.tracking.fluent", "mlflow"):
        yield LogCall(module, "log_metric", "mlflow", ("key", "value"))
        yield LogCall(module, "log_metrics", "mlflow", ("metrics",))
    client = "MlflowClient.log_metric"
    yield LogCall("mlflow.tracking.client", client, "mlflow", ("run_id", "key", "value"))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        module = f"{package}.core.module"
        yield LogCall(module, "LightningModule.log", "lightning", ("name", "value"))
        yield LogCall(module, "LightningModule.log_dict", "lightning", ("dictionary",))
    for module in ("lightning.fabric.fabric", "lightning_fabric.fabric"):
        yield LogCall(module, "Fabric.log", "lightning", ("name", "value"))
        yield LogCall(module, "Fabric.log_dict", "lightning", ("metrics",))
    yield LogCall("transformers.trainer", "Trainer.log", "transformers", ("logs",))
    yield LogCall("csv", "DictWriter.writerow", "csv", ("rowdict",))
    yield LogCall("accelerate.accelerator", "Accelerator.log", "accelerate", ("values",))


class Loggers:
    """Replaces the functions of loggers and tells of the numbers that they are given."""

    def __init__(self, patches: Patches, listens: Callable[[str], bool], tell: Tell) -> None:
        self._patches = patches
        self._listens = listens
        self._tell = tell
        self._missing = list(_places())
        self._modules = -1
        self._inside = threading.local()
        patches.replace(csv, "writer", self._name_columns)

    def look(self) -> None:
        """Replace what has been imported since the last look; cheap where nothing was."""
        if len(sys.modules) == self._modules or not self._patches.active:
            return
        self._modules = len(sys.modules)
        self._missing = [place for place in self._missing if not self._replace(place)]

    def _replace(self, place: LogCall) -> bool:
        """Replace one function, if it is there; say whether that is done."""
        module = sys.modules.get(place.module)
        owner: Any = module
        *classes, name = place.function.split(".")
        for part in classes:  # vars(), because getattr() would wake up lazy modules
            owner = vars(owner).get(part) if owner is not None else None
        function = vars(owner).get(name) if owner is not None else None
        if place.module == "wandb" and not hasattr(function, "__self__"):
            return False  # before wandb.init() this is a reminder, and afterwards a bound method
        if not callable(function):
            return False
        self._patches.replace(owner, name, lambda log: self._wrap(log, place, bool(classes)))
        return True

    def _wrap(self, log: Callable[..., Any], place: LogCall, method: bool) -> Callable[..., Any]:
        """Return a function that tells of the numbers it is given, and logs as before."""
        channel = place.channel

        @wraps(log)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Log, once it was told what."""
            inside = self._inside.__dict__
            if channel in inside or torch.compiler.is_compiling() or not self._listens(channel):
                return log(*args, **kwargs)
            inside[channel] = True
            try:
                given = dict(zip(place.given, args[method:], strict=False)) | kwargs
                self._tell(channel, [given.get(name) for name in place.given])
                return log(*args, **kwargs)
            finally:
                del inside[channel]

        return wrapper

    def _name_columns(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `csv.writer` whose rows are heard."""

        @wraps(make)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Make the writer; one that is made after the recording is itself."""
            writer = make(*args, **kwargs)
            return CsvRows(writer, self._hear_row) if self._patches.active else writer

        return wrapper

    def _hear_row(self, columns: Sequence[str], row: Sequence[Any]) -> None:
        """Tell of the numbers in a row of a table."""
        if self._patches.active and self._listens("csv"):
            self._tell("csv", [dict(zip(columns, row, strict=False))])


class CsvRows:
    """Stands in the place of a csv writer: its first row of words names the columns."""

    __slots__ = ("_columns", "_hear", "_writer")

    def __init__(self, writer: Any, hear: Callable[[Sequence[str], Sequence[Any]], None]) -> None:
        self._writer, self._hear = writer, hear
        self._columns: Sequence[str] = ()

    def writerow(self, row: Any) -> Any:
        """Write a row, once it was told what."""
        if type(row) in (list, tuple) and 0 < len(row) <= _MOST_VALUES:
            if self._columns:
                self._hear(self._columns, row)
            elif all(type(entry) is str for entry in row):
                self._columns = tuple(row)
        return self._writer.writerow(row)

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else is asked for."""
        return getattr(self._writer, name)


def numbers_given(given: list[Any]) -> Iterator[Said]:
    """Yield the names, numbers and roundings among the arguments."""
    name, value = ("", given[0]) if len(given) == 1 else (given[-2], given[-1])
    left = _MOST_VALUES
    for path, entry in _flat(name, value, _DEEPEST):
        number = number_of(entry)
        if number is not None:
            yield path, number, rounding_of(entry) if isinstance(entry, float) else 0.0
            left -= 1
        if not left:
            return


def _flat(name: Any, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested mappings, their keys joined with slashes."""
    if not isinstance(value, Mapping):
        yield str(name), value
    elif depth:
        for key, entry in value.items():
            yield from _flat(f"{name}/{key}" if name else key, entry, depth - 1)


def number_of(value: Any) -> Value | None:
    """Return a number as a float, one that is not on the CPU as it is, and None for all else."""
    if isinstance(value, torch.Tensor):
        return _element(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
        return float(value.item())
    is_number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    try:
        return float(value) if is_number else None
    except OverflowError:  # a whole number larger than any float
        return None


def _element(value: torch.Tensor) -> Value | None:
    """Return the only element of a tensor, or a copy of the tensor if it is on an accelerator."""
    odd = type(value) not in _PLAIN and type(value).__module__.startswith("torch.")
    if odd or value.numel() != 1 or value.is_complex() or value.is_meta:
        return None
    if _is_far(value):
        return value.detach().clone()
    try:
        return float(value.detach())
    except RuntimeError:  # inside a transformation of torch.func it has no value
        return None


def _is_far(value: torch.Tensor) -> bool:
    """Say whether reading a tensor would wait for a device."""
    return value.device.type != "cpu"


def rounding_of(value: float) -> float:
    """Return half a unit of the last decimal of a number that looks rounded, otherwise 0."""
    if value - value != 0 or value != round(value, _DECIMALS):
        return 0.0
    if value == 0 or abs(value) >= 1e15:
        return 0.5 * 10.0**-_DECIMALS
    return 0.5 * 10.0 ** -len(f"{abs(value):.{_DECIMALS}f}".rstrip("0").partition(".")[2])
