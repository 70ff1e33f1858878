"""The probe `conduct`: what a call does besides returning a loss."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Sample
from trainguard.observe.loss.call import LossCase, Tensors, check_attached
from trainguard.observe.tools import call_code
from trainguard.observe.tools.isolation import Expired, checksum_streams
from trainguard.observe.tools.points import Box, plain
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.loss import Loss

_SEED = 20
_MODULE_OF = {"numpy": "numpy.random"}  # of a random stream


@dataclass(frozen=True)
class SideEffects:
    """What calls did besides their work, the call of each case, and whether to hand out copies."""

    samples: tuple[Sample, ...] = ()
    calls: tuple[str, ...] = ()
    protect: bool = False


def conduct(
    loss: Loss, structures: Sequence[Structure], device: str, dtype: torch.dtype
) -> SideEffects:
    """
    Call a loss a few times on plain inputs of every structure, and watch what else happens.

    Raises SubjectError where a call fails, is detached or gives another value the second time.
    The samples: "mutated" (an input was edited), "changed" (a global setting), "reseeded" (a global
    random stream), "printed" and "warned".
    """
    seen: dict[tuple[str, str], Sample] = {}
    calls = []
    for case, structure in enumerate(structures):
        point = plain(Box(loss.tensors, structure.sizes, dtype, device))
        calls.append(call_code.call(loss, structure, point))
        try:
            component = LossCase(loss, structure, device, dtype)
            for sample in _watch_calls(component, point, case):
                seen.setdefault((sample.quantity, sample.input), sample)
        except (SubjectError, Expired) as fault:
            fault.call = calls[-1]
            raise
    mutated = any(quantity == "mutated" for quantity, _ in seen)
    return SideEffects(tuple(seen.values()), tuple(calls), protect=mutated)


def make_copies(loss: Loss, point: Tensors) -> Tensors:
    """Return copies to hand to a call: as in training no leaves, so that they can be edited."""
    return {
        name: t.clone().requires_grad_().clone() if loss.tensors[name].grad else t.clone()
        for name, t in point.items()
    }


def _watch_calls(component: LossCase, point: Tensors, case: int) -> Iterator[Sample]:
    """Call a loss three times at one point, the last time with another seed."""
    given, printed = make_copies(component.loss, point), io.StringIO()
    versions = {name: t._version for name, t in given.items()}  # noqa: SLF001 there is no other way
    with warnings.catch_warnings(record=True) as warned, redirect_stdout(printed):
        warnings.simplefilter("always")
        first = check_attached(component.total(given, _SEED))
        second = component.total(make_copies(component.loss, point), _SEED)
        before = checksum_streams()
        component.total(make_copies(component.loss, point), _SEED + 1)
        after = checksum_streams()
    _check_repeats(first.detach(), second.detach())
    edited = [n for n, t in given.items() if t._version != versions[n] or not _same(t, point[n])]  # noqa: SLF001
    seen = {
        "mutated": [(name, "") for name in edited],
        "changed": [(name, f"from {was} to {now}") for name, was, now in component.changed],
        "reseeded": [(_MODULE_OF.get(n, n), "") for n in after if before.get(n) == after[n]],
        "printed": [("", line) for line in printed.getvalue().splitlines()[:1]],
        "warned": [("", f"{w.category.__name__}: {w.message}") for w in warned[:1]],
    }
    for kind, found in seen.items():
        for place, label in found:
            yield Sample(case=case, quantity=kind, measured=1.0, input=place, label=label)


def _check_repeats(first: Tensor, second: Tensor) -> None:
    """Raise where the second of two equal calls gives another value."""
    if first.shape != second.shape or not torch.allclose(first, second, equal_nan=True):
        raise SubjectError(
            "it returned different values for the same inputs and the same seed",
            "let it draw from torch, numpy or random, and keep no state between calls; for a loss"
            " that keeps state on purpose, declare a function that builds it anew",
        )


def _same(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors hold the same numbers, nan included."""
    if a.is_floating_point():
        a, b = a.detach().nan_to_num(), b.nan_to_num()
    return torch.equal(a, b)
