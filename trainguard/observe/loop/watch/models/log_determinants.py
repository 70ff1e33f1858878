"""Watches modules that return the logarithm of their determinant: whether it is, and its sign."""

import ast
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, attempt
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.discarded import find_function
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 2, 4, 8, 16, 32, 64}  # that are looked at: flows often begin as the identity
_ROWS, _WIDEST = 8, 64  # of what is asked
_FEWEST = 4  # rows, of which less than three tell nothing but a factor
_APART = 0.05  # of the logarithms, between rows: of what is constant nothing can be told
_MISFIT = 0.02  # of that: a derivative in float32 is exact to a thousandth
_CALLED = {"det", "determinant", "jac", "jacobian", "ld", "ldj", "logdet", "sldj"}


class LogDeterminants(Watcher):
    """
    The Probe events "log determinant": modules whose second result is none, or pulls the other way.

    Of modules that map rows of numbers to as many, and return a number for each row beside them. A
    copy is asked for the derivatives of a few rows. label: "value" where the module calls the
    number so and it is another one, "sign" where it is the logarithm and the loss falls with it.
    measured: looks, of reference.
    """

    makes = ("Probe:log determinant",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = {"sign": 0, "value": 0}
        self._wrong = {"sign": 0, "value": 0}
        self._sources: dict[str, str] = {}

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask a copy, and the number to tell when it is pulled."""
        if self.recorder.age not in _STEPS or not forward.gradients or not self.recorder.probe:
            return
        if not _is_flow(inputs, output):
            return
        call = CopyableCall.of(forward, module, inputs)
        told = attempt(self.recorder, call, lambda run: _ask(run, call.inputs))
        share = _compare(*told) if told is not None else None
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
            if looks and self._wrong[label] == looks:
                rest = {"label": label, "source": self._sources[label]}
                yield make_probe("log determinant", looks, looks, **rest)

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
        if self.recorder.patches.live and pulls in ({1.0}, {-1.0}):
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
    sized = given.numel() == made.numel() and number.numel() == len(number) == rows
    return sized and rows >= _FEWEST and given.is_floating_point() and 1 < _width(given) <= _WIDEST


def _width(rows: torch.Tensor) -> int:
    """Return how many numbers each row has."""
    return rows.numel() // len(rows)


def _ask(run: Run, inputs: tuple[Any, ...]) -> tuple[Table, Table, int] | None:
    """Return the logarithms of the determinants of some rows, what was returned, and the width."""
    with torch.enable_grad():
        given = inputs[0].detach().clone().requires_grad_(True)
        made, number = run((given, *inputs[1:]))
        step = max(1, len(given) // _ROWS)
        columns = made.reshape(len(given), -1)[::step].sum(0)
        slopes = [torch.autograd.grad(each, given, retain_graph=True)[0] for each in columns]
    table = torch.stack([each.reshape(len(given), -1)[::step] for each in slopes], 1).double()
    logarithms = torch.linalg.slogdet(table)[1]
    flat = number.detach().reshape(len(given))[::step]
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
    """Say whether a module calls what it returns at the second place a determinant."""
    code = getattr(type(module).forward, "__code__", None)
    made = find_function(code) if code is not None else None
    for part in ast.walk(made) if made is not None else ():
        value = part.value if isinstance(part, ast.Return) else None
        for node in ast.walk(value.elts[1]) if isinstance(value, ast.Tuple) else ():
            name = getattr(node, "id", getattr(node, "attr", ""))
            if words_in(name) & _CALLED:
                return True
    return False
