"""
The probe of a transform and its inverse, over the whole declared range of values.

Serving events, one for each shape that was tried, `at` the place and the shape:
"error": the largest error, `detail` what became of that value.
"trip": the error that is worst for what is allowed there, `reference`: a step of the codes where
    the transform quantises, which differs from place to place, and rounding where it does not.
"half": the same against half a step, away from the two ends; only where it quantises.
"levels": how many values come back, `reference` how many different ones were put in; likewise, and
    only once.
"shape": another shape came back. "bad": so many values came back that are not finite.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainguard.core.errors import SubjectError, is_ours
from trainguard.events.loader import Serving
from trainguard.observe.loader.splits import Loaders
from trainguard.subjects.domain import BATCH, Domain

VALUES = 1 << 18  # more than twice what 16 bits can tell apart
_LENGTHS = (64, 7, 100)
_BATCHES = (2, 3, 1)
_OTHERS = (2, 1, 2)
_ROUNDING = 1e-5

Function = Callable[..., Any]


def transform(loaders: Loaders, case: int) -> Iterator[Serving]:
    """Yield what comes back from the declared transform and its inverse."""
    subject = loaders.subject
    assert subject.transform is not None, "it is declared"
    assert subject.inverse is not None, "it is declared"
    assert subject.values is not None, "it is declared"
    for event in round_trips(subject.transform, subject.inverse, subject.values, loaders.seed):
        yield replace(event, case=case)


def round_trips(forth: Function, back: Function, values: Domain, seed: int) -> Iterator[Serving]:
    """Yield what comes back from the transform and its inverse, for several shapes."""
    refused: Exception | None = None
    known: Tensor | None = None
    tried = 0
    for case, sizes in enumerate(_sizes(values)):
        given = _draw(values, sizes, seed)
        try:
            returned = _there_and_back(forth, back, given)
        except Exception as error:
            if is_ours(error):
                raise
            refused = refused or error
            continue
        tried += 1
        if case == 0 and (known := _find_levels(given, returned)) is not None:
            yield Serving(quantity="levels", measured=len(known), reference=len(_different(given)))
        yield from _measure(given, returned, _limit_for(values, sizes), known)
    if not tried and refused is not None:
        raise SubjectError(
            f"its transform, or the inverse, raised {type(refused).__name__}: {refused}",
            "declare with values= what the transform takes",
        ) from refused


def _sizes(values: Domain) -> list[dict[str, int]]:
    """Return sizes of the named dimensions: a few small ones, and one with very many values."""
    names = list(dict.fromkeys(values.names))
    rest = [name for name in names if name != BATCH]
    long = "T" if "T" in rest else next(reversed(rest), "")
    cases = [
        {name: batch if name == BATCH else length if name == long else other for name in names}
        for length, batch, other in zip(_LENGTHS, _BATCHES, _OTHERS, strict=True)
    ]
    most = dict(cases[0])
    grown = BATCH if BATCH in names else long
    if grown:
        count = int(np.prod(values.dims(most)))
        most[grown] *= max(1, -(-VALUES // count))
    return [case for i, case in enumerate([most, *cases]) if case not in [most, *cases][:i]]


def _draw(values: Domain, sizes: Mapping[str, int], seed: int) -> Tensor:
    """Return values that cover the whole range, both ends among them, in random order."""
    shape = values.dims(sizes)
    count = int(np.prod(shape))
    generator = torch.Generator().manual_seed(seed)
    low, high = values.span(sizes)
    if values.kind == "real":
        even = torch.linspace(low, high, max(count, 2))[:count]
    elif values.kind == "integer" and high - low >= VALUES:
        even = torch.randint(int(low), int(high) + 1, (count,), generator=generator)
    else:
        listed = torch.tensor(values.list_values(sizes) or values.values)
        rows = torch.arange(count) % len(listed)
        even = listed[rows if count >= len(listed) else torch.randperm(len(listed))[:count]]
        even = even.long() if values.kind == "integer" else even
    return even[torch.randperm(count, generator=generator)].reshape(shape)


def _there_and_back(forth: Function, back: Function, given: Tensor) -> Tensor:
    """Return what the inverse makes of what the transform makes, of tensors or else of arrays."""
    try:
        return _as_tensor(_undone(back, forth(given.clone())))
    except Exception as refused:  # noqa: BLE001 it may take arrays only
        try:
            return _as_tensor(_undone(back, forth(given.clone().numpy())))
        except Exception:  # noqa: BLE001 then what it said of tensors is what is told
            raise refused from None


def _undone(inverse: Function, made: Any) -> Any:
    """Call the inverse with what the transform returned; a tuple may be several arguments."""
    if not isinstance(made, tuple):
        return inverse(made)
    try:
        return inverse(*made)
    except TypeError:
        return inverse(made)


def _as_tensor(back: Any) -> Tensor:
    """Return what came back as a tensor."""
    return torch.as_tensor(np.asarray(back) if not isinstance(back, Tensor) else back).detach()


def _measure(given: Tensor, back: Tensor, bound: float, known: Tensor | None) -> Iterator[Serving]:
    """Yield what there is to say about one shape; `known` are the values that ever come back."""
    shape = tuple(given.shape)
    if back.shape != given.shape:
        detail = f"{shape} becomes {tuple(back.shape)}"
        yield Serving(quantity="shape", at=f"shape {shape}", detail=detail)
        return
    before, after = given.reshape(-1).double(), back.reshape(-1).double()
    bad = ~torch.isfinite(after)
    if bad.any():
        place = _place(int(bad.int().argmax()), shape)
        yield Serving(quantity="bad", at=place, measured=int(bad.sum()), reference=len(after))
        return
    error = (after - before).abs()
    yield _worst("error", before, after, error, torch.ones_like(error), shape)
    if known is None:
        yield _worst("trip", before, after, error, torch.full_like(error, bound), shape)
        return
    which = torch.searchsorted(known[:-1].add(known[1:]) / 2, after)
    step = _steps(known)[which]
    ends = (which == 0) | (which == len(known) - 1)
    yield _worst("trip", before, after, error, step, shape)
    yield _worst("half", before, after, error.masked_fill(ends, 0.0), step / 2, shape)


def _find_levels(given: Tensor, back: Tensor) -> Tensor | None:
    """Return the values that come back where they are much fewer than those put in, in order."""
    levels = _different(back.double())
    coarse = 2 * len(levels) <= len(_different(given))
    return levels if coarse and len(levels) > 1 and bool(torch.isfinite(levels).all()) else None


def _different(values: Tensor) -> Tensor:
    """Return the different ones of some values, in order."""
    return torch.unique(values)  # type: ignore[no-any-return]


def _limit_for(values: Domain, sizes: Mapping[str, int]) -> float:
    """Return how far a value may move that is not quantised: by rounding, or within its bin."""
    low, high = values.span(sizes)
    if values.kind == "bins":
        return 0.49 * (high - low) / (values.count - 1)
    return _ROUNDING * max(abs(low), abs(high))


def _steps(levels: Tensor) -> Tensor:
    """Return the larger distance of each level to its neighbours."""
    gaps = levels.diff()
    none = gaps.new_zeros(1)
    return torch.maximum(torch.cat([none, gaps]), torch.cat([gaps, none]))


def _worst(
    quantity: str, before: Tensor, after: Tensor, error: Tensor, allowed: Tensor, shape: Any
) -> Serving:
    """Return the value whose error is the largest share of what is allowed there."""
    index = int((error / allowed).argmax())
    was, now = float(before[index]), float(after[index])
    moved = error[index] > allowed[index] and torch.allclose(
        before.sort().values, after.sort().values, atol=float(allowed.max()), rtol=0.0
    )
    return Serving(
        quantity=quantity,
        at=_place(index, shape),
        measured=float(error[index]),
        reference=float(allowed[index]),
        detail=f"{was:.6g} becomes {now:.6g}" + (", moved" if moved else ""),
    )


def _place(index: int, shape: tuple[int, ...]) -> str:
    """Write where in a tensor of a shape an element stands."""
    where = ", ".join(str(int(i)) for i in np.unravel_index(index, shape))
    return f"[{where}], shape {shape}"
