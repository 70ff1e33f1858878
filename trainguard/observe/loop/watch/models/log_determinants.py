"""Watches modules that return the logarithm of their determinant: whether it is, and its sign."""

import ast
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, attempt
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import Forward, is_climbed
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.discarded import find_function, parse_file
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller, forward_of, user_frames

_STEPS = {1, 2, 4, 16, 64}  # that are looked at: flows often begin as the identity
_MOST = 4  # modules
_ROWS, _WIDEST = 8, 64  # of what is asked
_ASKED = 16  # rows whose logarithms are computed
_LEAST = 3  # looks that are held against each other
_FEWEST = 4  # rows, of which less than three tell nothing but a factor
_APART = 0.05  # of the logarithms, between rows: of what is constant nothing can be told
_MISFIT = 0.02  # of that: a derivative in float32 is exact to a thousandth
_CALLED = {"determinant", "jac", "jacobian", "ldj", "logdet", "sldj"}  # det may be a detection


class LogDeterminants(Watcher):
    """
    The Probe events "log determinant": modules whose second result is none, or pulls the other way.

    Of modules that map rows of numbers to as many, and return a number for each row beside them, or
    one for all. A copy is asked for the derivatives of a few rows. label: "value" where the module
    calls the number so and it is another one, as rows or as looks differ, "sign" where it is the
    logarithm and the loss rises with it. measured: looks, of reference.
    """

    makes = ("Probe:log determinant",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = {"sign": 0, "value": 0}
        self._wrong = {"sign": 0, "value": 0}
        self._sources: dict[str, str] = {}
        self._levels: weakref.WeakKeyDictionary[nn.Module, list[tuple[float, float, int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._drifting: dict[int, int] = {}  # looks at modules whose numbers move otherwise, by id

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask a copy, and the number to tell when it is pulled."""
        if self.recorder.age not in _STEPS or not forward.gradients or not self.recorder.probe:
            return
        if not _is_flow(inputs, output) or not self._is_followed(module):
            return
        call = CopyableCall.of(forward, module, inputs)
        told = attempt(self.recorder, call, lambda run: _ask(run, call.inputs))
        if told is None:
            return
        self._levels[module].append((told[0].mean(), told[1].mean(), told[2]))
        self._see_levels(module)
        share = _compare(*told)
        if share is None:
            return
        if share == 0 and _is_called_so(module):
            self._count("value", wrong=True)
        elif share != 0:
            self._count("value", wrong=False)
            self._listen(output[1], share)

    def finish(self) -> Iterable[Event]:
        """Return what was wrong at each look."""
        for label, looks in self._looks.items():
            if looks:
                self.looked.add("log determinant")
            wrong = looks if self._wrong[label] == looks else 0
            wrong = wrong or (max(self._drifting.values(), default=0) if label == "value" else 0)
            if wrong:
                rest = {"label": label, "source": self._sources[label]}
                yield make_probe("log determinant", wrong, wrong, **rest)

    def _is_followed(self, module: nn.Module) -> bool:
        """Say whether a module is one of the first ones, which are asked."""
        if module not in self._levels and len(self._levels) < _MOST:
            self._levels[module] = []
        return module in self._levels

    def _see_levels(self, module: nn.Module) -> None:
        """See whether what a module returns moves from look to look as its logarithms do."""
        logarithms, numbers, widths = np.array(self._levels[module]).T
        if len(widths) >= _LEAST and _is_called_so(module):
            share = _compare(logarithms, numbers, int(widths[0]))
            self._drifting[id(module)] = len(widths) if share == 0 else 0
            self._sources.setdefault("value", caller())
            self.looked |= {"log determinant"} if share is not None else set()

    def _count(self, label: str, *, wrong: bool) -> None:
        """Count a look."""
        self._looks[label] += 1
        self._wrong[label] += wrong
        self._sources.setdefault(label, caller())

    def _listen(self, determinant: torch.Tensor, share: float) -> None:
        """Ask a logarithm to tell when it is pulled."""

        def on_gradient(gradient: torch.Tensor) -> None:
            """Look at it, and change nothing."""
            self._look(gradient, share)

        determinant.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    @shielded
    def _look(self, gradient: torch.Tensor, share: float) -> None:
        """See whether a loss rises with the logarithm; one that pulls rows apart tells nothing."""
        pulls = set[float]()
        with suppress(Exception):  # of several gradients at once, which have no numbers
            pulls = set(np.sign(array_of(gradient.detach())).ravel().tolist())
        climbs = is_climbed(self.recorder.windows)
        if self.recorder.patches.live and pulls in ({1.0}, {-1.0}) and not climbs:
            self._count("sign", wrong=pulls == {float(np.sign(share))})


def _is_flow(inputs: tuple[Any, ...], output: Any) -> bool:
    """Say whether rows (N, K) came out as such, with a number for each row beside them."""
    if not isinstance(output, tuple | list) or len(output) != 2 or not inputs:
        return False
    tensors = (inputs[0], *output)
    if not all(type(each) in (torch.Tensor, nn.Parameter) and each.is_cpu for each in tensors):
        return False
    given, made, number = tensors
    if not (made.requires_grad and number.requires_grad and has_rows(number)):
        return False
    rows = len(given) if given.dim() > 1 else 0
    per_row = number.dim() > 0 and number.numel() == len(number) == rows
    sized = given.numel() == made.numel() and (per_row or number.dim() == 0)
    return sized and rows >= _FEWEST and given.is_floating_point() and 1 < _width(given) <= _WIDEST


def _width(rows: torch.Tensor) -> int:
    """Return how many numbers each row has."""
    return rows.numel() // len(rows)


def _ask(run: Run, inputs: tuple[Any, ...]) -> tuple[Table, Table, int]:
    """Return the logarithms of the determinants of some rows, what was returned, and the width."""
    with torch.enable_grad():
        step = max(1, len(inputs[0]) // _ROWS)
        # What is beside it has rows, too, and all of them are asked.
        alone = inputs[0][::step] if len(inputs) == 1 else inputs[0]
        given = alone.detach().clone().requires_grad_(True)
        made, number = run((given, *inputs[1:]))
        columns = made.reshape(len(given), -1).sum(0)
        slopes = [torch.autograd.grad(each, given, retain_graph=True)[0] for each in columns]
    table = torch.stack([each.reshape(len(given), -1) for each in slopes], 1)[:_ASKED].double()
    logarithms = torch.linalg.slogdet(table)[1]
    flat = number.detach().reshape(-1).expand(len(given))[:_ASKED]
    return array_of(logarithms), array_of(flat).astype(np.float64), _width(given)


def _compare(logarithms: Table, numbers: Table, width: int) -> float | None:
    """
    Return how much of the logarithms numbers are: 1 or -1, 0 of others, None where none can tell.

    All but for a constant, as data are scaled by. A mean over the columns is one of them, too.
    """
    if not np.isfinite(logarithms).all() or not np.isfinite(numbers).all():
        return None
    wanted, found = logarithms - logarithms.mean(), numbers - numbers.mean()
    if np.abs(wanted).max() < _APART:
        return None
    for share in (1.0, -1.0, 1 / width, -1 / width):
        if np.abs(found - share * wanted).max() <= _MISFIT * abs(share) * np.abs(wanted).max():
            return float(np.sign(share))
    return 0.0


def _is_called_so(module: nn.Module) -> bool:
    """Say whether a module, or who calls it, calls what it returns at the second place so."""
    code = getattr(forward_of(module), "__code__", None)
    made = find_function(code) if code is not None else None
    parts = ast.walk(made) if made is not None else ()
    values = [part.value for part in parts if isinstance(part, ast.Return)]
    values += [target for frame in user_frames(1) for target in _find_targets(frame)]
    pairs = [value.elts[1] for value in values if isinstance(value, ast.Tuple) and value.elts[1:]]
    names = [node for pair in pairs for node in ast.walk(pair)]
    said = (getattr(node, "id", getattr(node, "attr", "")) for node in names)
    return any(words & _CALLED or words >= {"log", "det"} for words in map(words_in, said))


def _find_targets(frame: FrameType) -> Iterator[ast.expr]:
    """Yield what a line stores in: `z, log_det` of `z, log_det = flow(x)`."""
    tree = parse_file(frame.f_code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and node.lineno == frame.f_lineno:
            yield from node.targets
