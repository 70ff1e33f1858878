"""SeenInputs adds up what one function or module was called with: shapes, ranges, what is alike."""

from dataclasses import dataclass, field
from math import floor, inf, isfinite, log10
from typing import Any

import torch

from trainguard.observe.tools.local_values import local_values
from trainguard.observe.tools.plain_code import write_plain

_MOST = 64  # calls that are looked at
_LARGEST = 2**12  # elements of one sample: a sweep holds thousands of samples at once
_FEW = 8  # columns that are compared with each other
_CERTAIN = 16  # rows in which one is above the other: by chance in one of 65,536
_TOLERANCE = 1e-3
_LETTERS = "BTSLKJHGF"


@dataclass(slots=True)
class _Tensor:
    """
    What the values of one tensor were: shapes of its calls, range, few values, row laws.

    ends: of whole numbers, the two lowest and the two highest that were seen.
    """

    dtype: torch.dtype
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    low: float = inf
    high: float = -inf
    grad: bool = False
    values: set[float] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    normalised: bool = True
    ordered: bool = True
    prefixes: bool = True

    def add(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Take the values of one call."""
        self.shapes.append(tuple(values.shape))
        self.grad |= tensor.requires_grad
        low, high = (float(bound) for bound in values.double().aminmax())
        self.low, self.high = min(self.low, low), max(self.high, high)
        if len(self.values) < 3:
            self.values.update(torch.unique(values.double())[:3].tolist())
        if not values.is_floating_point():
            whole = sorted({*self.ends, *torch.unique(values.long()).tolist()})
            self.ends = sorted({*whole[:2], *whole[-2:]})
        self.normalised &= _has_a_fixed_sum(values)
        self.ordered &= _has_ordered_columns(values)
        self.prefixes &= _keeps_prefixes(values)


@dataclass(slots=True)
class SeenInputs:
    """The inputs of one component over its calls."""

    calls: int = 0
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    others: dict[str, set[str]] = field(default_factory=dict)
    obstacle: str = ""

    @property
    def is_full(self) -> bool:
        """Say whether enough was seen."""
        return self.calls >= _MOST or bool(self.obstacle)

    def add(self, given: dict[str, Any]) -> None:
        """Take the arguments of one call."""
        if self.calls and set(given) != {*self.tensors, *self.others}:
            self.obstacle = "it is called with other arguments at different times"
        self.calls += 1
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                self._add_tensor(name, value)
            elif (code := write_plain(value, [])) is not None:
                self.others.setdefault(name, set()).add(code)
            else:
                self.obstacle = f"`{name}` is a {type(value).__name__}"

    def _add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor that can be read and is of a kind that can be declared."""
        values = local_values(tensor)
        if values is None or not values.numel() or values.is_complex() or values.is_sparse:
            self.obstacle = f"the values of `{name}` cannot be looked at"
            return
        seen = self.tensors.setdefault(name, _Tensor(tensor.dtype))
        seen.add(tensor, values)
        if not isfinite(seen.low) or not isfinite(seen.high):
            self.obstacle = f"`{name}` is not always finite"

    def find_obstacle(self) -> str:
        """Say why ranges alone do not describe what was seen; empty where they do."""
        if self.obstacle:
            return self.obstacle
        for name, seen in self.tensors.items():
            if seen.normalised:
                return f"the rows of `{name}` have one sum or norm, which no range says"
            if seen.ordered:
                return f"columns of `{name}` are in order, which no range says"
            if len({len(shape) for shape in seen.shapes}) > 1:
                return f"`{name}` has other numbers of dimensions at different times"
            if max(map(_sample_size, seen.shapes)) > _LARGEST:
                return f"a sample of `{name}` has more than {_LARGEST:,} elements"
        return ""

    def describe(self) -> tuple[tuple[str, str, str, float, float, bool, str], ...]:
        """Return the inputs as a Component has them."""
        names = self._name_dimensions()
        tensors = [(name, *_describe(seen, names[name])) for name, seen in self.tensors.items()]
        others = [
            (name, "value", "", 0.0, 0.0, False, ", ".join(sorted(codes)))
            for name, codes in self.others.items()
        ]
        return (*tensors, *others)

    def sizes(self) -> tuple[tuple[str, int, int], ...]:
        """Return the sizes of the dimensions that have a name."""
        seen: dict[str, set[int]] = {}
        for name, words in self._name_dimensions().items():
            for place, word in enumerate(words):
                if not word.isdigit():
                    shapes = self.tensors[name].shapes
                    seen.setdefault(word, set()).update(shape[place] for shape in shapes)
        return tuple((word, min(sizes), max(sizes)) for word, sizes in seen.items())

    def _name_dimensions(self) -> dict[str, list[str]]:
        """Return a name for each dimension that varies and for the batch, a number for others."""
        batch = next((_history(t, 0) for t in self.tensors.values() if t.shapes[0]), ())
        known: dict[tuple[int, ...], str] = {}
        return {
            name: [
                self._name_dimension(_history(seen, place), place, batch, known)
                for place in range(len(seen.shapes[0]))
            ]
            for name, seen in self.tensors.items()
        }

    @staticmethod
    def _name_dimension(
        history: tuple[int, ...],
        place: int,
        batch: tuple[int, ...],
        known: dict[tuple[int, ...], str],
    ) -> str:
        """Return what a dimension is called, by the sizes that it had in all calls."""
        if history == batch and (place == 0 or len(set(batch)) > 1):
            return "B"
        if len(set(history)) == 1:
            return str(history[0])
        return known.setdefault(history, _LETTERS[min(len(known) + 1, len(_LETTERS) - 1)])


def _describe(seen: _Tensor, words: list[str]) -> tuple[str, str, float, float, bool, str]:
    """Return the kind of a tensor's domain, its dimensions, range, gradient and few values."""
    shape, few = " ".join(words), sorted(seen.values)
    if seen.dtype == torch.bool or (
        not seen.grad and len(few) < 3 and set(few) <= {-1.0, 0.0, 1.0}
    ):
        kind = "mask" if seen.prefixes and set(few) == {0.0, 1.0} else "choice"
        make = bool if seen.dtype == torch.bool else float if seen.dtype.is_floating_point else int
        return (
            kind,
            shape,
            seen.low,
            seen.high,
            False,
            ", ".join(repr(make(value)) for value in few),
        )
    if not seen.dtype.is_floating_point:
        if seen.low == seen.high:
            return "choice", shape, seen.low, seen.high, False, repr(int(seen.low))
        low, high, apart = _set_apart(seen.ends)
        return "integer", shape, low, high, False, apart
    if seen.low == seen.high:
        return "choice", shape, seen.low, seen.high, False, repr(seen.low)
    return "real", shape, _outwards(seen.low, -1), _outwards(seen.high, 1), seen.grad, ""


def _set_apart(ends: list[int]) -> tuple[float, float, str]:
    """Return a range without a number far from it, such as the -100 of labels, and that number."""
    low, second, *_ = ends
    *_, before, high = ends
    if len(ends) > 2 and (
        second - low > max(1, high - second) or low < min(0, second - 1) <= second
    ):
        return second, high, str(low)
    if len(ends) > 2 and high - before > max(1, before - low):
        return low, before, str(high)
    return low, high, ""


def _outwards(bound: float, way: int) -> float:
    """Return a bound with two digits, a little further out, and never on the far side of zero."""
    if bound == 0:
        return 0.0
    unit = 10.0 ** (floor(log10(abs(bound))) - 1)
    return float(f"{-floor(-bound * way / unit) * way * unit:.3g}")


def _history(seen: _Tensor, place: int) -> tuple[int, ...]:
    """Return the sizes of a dimension in all calls."""
    return tuple(shape[place] if place < len(shape) else 0 for shape in seen.shapes)


def _sample_size(shape: tuple[int, ...]) -> int:
    """Return how many elements a sample has."""
    return torch.Size(shape[1:]).numel()


def _rows(values: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor as rows of its last dimension; None where that says nothing of rows."""
    if values.dim() < 2 or values.shape[-1] < 2 or values.numel() < 2 * values.shape[-1]:
        return None
    return values.double().reshape(-1, values.shape[-1])


def _has_a_fixed_sum(values: torch.Tensor) -> bool:
    """Say whether rows, or columns of classes, are distributions, logarithms of such, or units."""
    for turned in (values, values.movedim(1, -1)) if values.dim() > 2 else (values,):
        rows = _rows(turned)
        if rows is None or not values.is_floating_point():
            continue
        for measured in (rows.sum(-1), rows.norm(dim=-1), rows.logsumexp(-1).exp()):
            if float((measured - 1).abs().max()) < _TOLERANCE:
                return True
    return False


def _has_ordered_columns(values: torch.Tensor) -> bool:
    """Say whether a column is above another in each row, though their ranges overlap."""
    rows = _rows(values)
    if rows is None or rows.shape[1] > _FEW or len(rows) < _CERTAIN:
        return False
    low, high = rows.amin(0), rows.amax(0)
    above = (rows[:, :, None] > rows[:, None, :]).all(0)
    overlap = low[:, None] < high[None, :]
    return bool((above & overlap).any())


def _keeps_prefixes(values: torch.Tensor) -> bool:
    """Say whether each row of zeros and ones begins with ones, and has one at least."""
    rows = _rows(values)
    if rows is None:
        return False
    return bool((rows[:, 0] == 1).all() and (rows.diff(dim=-1) <= 0).all())
