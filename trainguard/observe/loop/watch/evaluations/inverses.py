"""Watches pairs of functions of which one is said to undo the other: whether it does."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice, product
from types import FunctionType
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.counterfactual.forking import Exit, fork, obstacle
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import foreign
from trainguard.observe.tools.written_lines import count_arguments

_LOOKS = (4, 64)  # of the losses of training and of evaluations each: by then all is set up
_SECONDS = 2.0  # of processor time for two functions and a batch
_LARGEST = 2**16  # numbers that they are given
_LEAST = 8  # numbers of several values: of fewer nothing is known of a scale
_PAIRS = 16  # that are tried
_APART = 0.1  # of the deviation, in the median: rounding to 8 bits takes up to 0.02
_SAME = 1e-3  # of the deviation, in the median: what the order of sums makes
# What undoes what: the rest of both names is the same, such as `scale_target`, `unscale_target`.
_UNDOES = {
    "transform": {"inverse", "inverse_transform", "inv_transform", "untransform", "invert", "undo"},
    "normalize": {"denormalize", "unnormalize", "inverse", "inverse_transform"},
    "normalise": {"denormalise", "unnormalise", "inverse", "inverse_transform"},
    "standardize": {"destandardize", "unstandardize", "inverse", "inverse_transform"},
    "standardise": {"destandardise", "unstandardise", "inverse", "inverse_transform"},
    "norm": {"denorm", "unnorm"},
    "scale": {"unscale", "descale"},
    "__call__": {"inverse", "inverse_transform", "inv", "invert", "undo"},
}

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class Inverses(Watcher):
    """
    The Probe event "inverse", of a function that does not undo what another one does.

    measured: how far numbers of a batch are, in the median, from what both make of them, against
    their deviation; reference: how far they may be. Both are tried in a closed-off child, and
    either one first.
    """

    makes = ("Probe:inverse",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls = {True: 0, False: 0}  # of training, and of evaluations
        self._tried: set[str] = set()
        self._found: list[Probe] = []

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, _tally: LossCalls, _scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look for such functions where a loss is computed, and try them with its targets."""
        learns = value.requires_grad
        self._calls[learns] += 1
        if self._calls[learns] not in _LOOKS or not isinstance(target, torch.Tensor):
            return
        given = self._batches.given() if self._batches.given is not None else None
        numbers = [each.detach() for each in (target, given) if each is not None and _varies(each)]
        pairs = dict(islice(_find_pairs(), _PAIRS)) if numbers else {}
        fresh = {label: pair for label, pair in pairs.items() if label not in self._tried}
        if fresh and not obstacle():
            self._tried |= fresh.keys()
            self._take(fresh, fork(_SECONDS, lambda out: _try_pairs(fresh, numbers, out)))

    def _take(self, pairs: dict[str, _Pair], answer: Any) -> None:
        """Take down what a child has found."""
        report = answer.report if answer is not None else {}
        for label, (_, undo) in pairs.items():
            off = report.get(label)
            if isinstance(off, float):
                self.looked.add("inverse")
                if off > _APART:
                    self._found.append(
                        make_probe("inverse", off, _APART, label=label, source=_place(undo))
                    )

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found


def _varies(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has numbers of several values, and not too many."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    able = plain and tensor.is_cpu and not tensor.is_nested
    fits = able and tensor.is_floating_point() and _LEAST <= tensor.numel() <= _LARGEST
    return fits and len(torch.unique(tensor)) >= _LEAST


def _find_pairs() -> Iterator[tuple[str, _Pair]]:
    """Yield the pairs of functions, and of methods of one object, that the user's code can name."""
    for _, _, parts in find_owners():
        functions = {k: f for k, f in parts.items() if isinstance(f, FunctionType)}
        yield from _match("", functions)
        for value in parts.values():
            kind = type(value)
            with suppress(Exception):  # whatever somebody's class does when it is looked at
                if not isinstance(value, nn.Module) and _is_own(kind):
                    methods = {n: getattr(value, n) for n in dir(kind) if _is_method(kind, n)}
                    yield from _match(f"{kind.__name__}.", methods)


def _match(owner: str, functions: dict[Any, Any]) -> Iterator[tuple[str, _Pair]]:
    """Yield those of one argument of which one is named as what undoes the other."""
    names = [name for name in functions if isinstance(name, str)]
    for name, other in product(names, names):
        if _undoes(other, name) and all(map(_takes_one, (functions[name], functions[other]))):
            yield f"{owner}{other} of {owner}{name}", (functions[name], functions[other])


def _undoes(name: str, other: str) -> bool:
    """Say whether a name is that of a function that undoes another one."""
    for word, undoing in _UNDOES.items():
        if other.startswith(word) or other.endswith(f"_{word}"):
            rest = re.sub(rf"^{word}|(?<=_){word}$", "", other)
            if any(name in (f"{undo}{rest}", f"{rest}{undo}") for undo in undoing):
                return True
    return False


def _is_own(kind: type) -> bool:
    """Say whether a class is of the user's own code."""
    with suppress(Exception):
        return foreign(inspect.getfile(kind))
    return False


def _is_method(kind: type, name: str) -> bool:
    """Say whether a class has a plain method of a name."""
    return isinstance(inspect.getattr_static(kind, name, None), FunctionType)


def _takes_one(function: Any) -> bool:
    """Say whether a function needs one argument, and gets no more, as a column, in its file."""
    with suppress(ValueError, TypeError):
        every = inspect.signature(function).parameters.values()
        needed = [p for p in every if p.default is p.empty and p.kind not in _SEVERAL]
        alone = len(needed) == 1 and needed[0].kind is not inspect.Parameter.KEYWORD_ONLY
        code = inspect.unwrap(function).__code__
        return alone and count_arguments(code.co_filename, function.__name__) <= 1
    return False


def _place(function: Any) -> str:
    """Return the file and line of a function."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _try_pairs(pairs: dict[str, _Pair], numbers: list[torch.Tensor], way_out: Exit) -> None:
    """Report how far each pair is from undoing each other, with what it is closest with."""
    warnings.simplefilter("ignore")  # of a child, whose numbers may be out of a function's reach
    report = {}
    with torch.enable_grad():  # so that it is seen of a result whether it was learned
        for label, (make, undo) in pairs.items():
            offs = [off for tensor in numbers if (off := _measure(make, undo, tensor)) is not None]
            if offs:
                report[label] = min(offs)
    way_out.report(**report)


def _measure(
    make: Callable[[Any], Any], undo: Callable[[Any], Any], numbers: torch.Tensor
) -> float | None:
    """
    Return how far numbers are from what both functions make of them, whichever is the first.

    None where a function refuses them, makes something else of them, or of each row what the other
    rows are: what takes its scale from what it is given undoes nothing later.
    """
    for given in (numbers, numbers.numpy()):
        with suppress(Exception):  # whatever somebody's functions do with what they do not expect
            undone = undo(given)
            if not (_is_by_row(undo, given) and _is_by_row(make, undone)):
                return None
            # What comes back from the given numbers does so from what they are undone to, too.
            ways = (_come_back(begin, make, undo) for begin in (undone, given))
            known = [off for off in ways if off is not None]
            return min(known) if known else None
    return None


def _come_back(begin: Any, one: Callable[[Any], Any], other: Callable[[Any], Any]) -> float | None:
    """Return how far two functions lead from where they begin; None where one leads nowhere."""
    with suppress(Exception):  # numbers may be out of their reach
        return _distance(begin, other(one(begin)))
    return None


def _is_by_row(function: Callable[[Any], Any], rows: Any) -> bool:
    """Say whether a function makes of some rows what it makes of them among others."""
    half = len(rows) // 2
    off = _distance(function(rows)[:half], function(rows[:half]))
    return off is not None and off <= _SAME


def _distance(before: Any, after: Any) -> float | None:
    """Return the median distance of two arrays against the deviation of the first."""
    tensors = [torch.as_tensor(each) for each in (before, after)]
    if any(tensor.requires_grad for tensor in tensors):
        return None  # what is learned need not be exact
    one, other = (tensor.detach().double() for tensor in tensors)
    if one.shape != other.shape or not (one.isfinite().all() and other.isfinite().all()):
        return None
    spread = float(one.std())
    return float((one - other).abs().median()) / spread if spread > 0 else None
