"""
The probes of sizes not trained with: batches of one sample, and longer inputs.

"single fails": 1 where the model cannot be called with one; `detail` says why.
"single shape": 1 for an output that has not the shape that it should have; `detail`.
"single": how far an output for a sample alone is from the one in a batch, relative to the largest;
    0 where it depends on the size of every batch, which is not a matter of one sample.

"longer fails": 1 where the model cannot be called with them; `detail` says why.
"longer shape": 1 for an output that has not the shape that it should have; `detail`.
"longer": how many elements of an output are not finite, `of` how many.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.cases import spans
from trainguard.observe.model.comparison import apart
from trainguard.observe.model.frozen_copy import FrozenCopy, raise_unjudged
from trainguard.observe.model.model_case import Inputs, ModelCase, describe_error
from trainguard.observe.model.output_axes import OutputAxis, entering, layouts
from trainguard.observe.model.outputs import Outputs
from trainguard.subjects.domain import BATCH

_AT = "a batch of 1"
_ROUNDING = 1e-6


def observe_batch_of_one(network: ModelCase) -> Iterator[Pass]:
    """Compare what comes out for one sample alone with what comes out for it in a batch."""
    least, most = spans(network.model)[BATCH]
    if 1 < least < most or network.sizes[BATCH] < 2:
        raise_unjudged(network, f"its batches are declared to have {least} to {most} samples")
        return
    specimen = FrozenCopy.of(network)
    inputs = specimen.draw()
    specimen.first()
    try:
        alone = specimen.call(_first(specimen, inputs, 1))
    except SubjectError as fault:
        _refuse_one_size(specimen, inputs)
        why = describe_error(fault.__cause__ or fault)
        one = network.with_sizes(**{BATCH: 1})
        yield one.make_event("single fails", at=_AT, measured=1.0, detail=why)
        return
    for name, ways in layouts(specimen, BATCH).items():
        if ways:
            yield _compare(specimen, inputs, alone, name, ways)


def _refuse_one_size(specimen: FrozenCopy, inputs: Inputs) -> None:
    """Raise where a model takes batches of one size only: then one sample is nothing special."""
    size = specimen.network.sizes[BATCH]
    try:
        if size > 2:
            specimen.call(_first(specimen, inputs, 2))
    except SubjectError:
        raise Unjudged(f"it takes batches of {size} samples only") from None


def _compare(
    specimen: FrozenCopy, inputs: Inputs, alone: Outputs, name: str, ways: list[OutputAxis]
) -> Pass:
    """Compare one output for the first sample alone with the same in the whole batch."""
    whole = specimen.first().tensors[name]
    expected = ways[0].part(whole, 0)
    found = alone.tensors.get(name)
    passed = specimen.network.with_sizes(**{BATCH: 1}).make_event
    if found is None or found.shape != expected.shape:
        shape = "nothing" if found is None else f"shape {tuple(found.shape)}"
        detail = f"{shape} instead of shape {tuple(expected.shape)}"
        return passed("single shape", place=name, at=_AT, measured=1.0, detail=detail)
    gap = min(apart(found, way.part(whole, 0)) for way in ways)
    precise = specimen.precise() if gap > _ROUNDING else specimen
    if precise is not specimen:
        inputs = precise.draw()
        return _compare(precise, inputs, precise.call(_first(precise, inputs, 1)), name, ways)
    if gap > _ROUNDING and _varies(specimen, inputs, name, ways):
        gap = 0.0
    return passed("single", place=name, at=_AT, measured=gap)


def _varies(specimen: FrozenCopy, inputs: Inputs, name: str, ways: list[OutputAxis]) -> bool:
    """Say whether an output for a sample is drawn, or is another one in a smaller batch too."""
    size = specimen.network.sizes[BATCH]
    whole, again = (specimen.call(inputs, seed).tensors[name] for seed in range(2))
    if apart(whole, again) or size < 3:
        return True
    two = specimen.call(_first(specimen, inputs, 2)).tensors[name]
    pairs = [OutputAxis(way.axis, way.outer, 2, way.inner) for way in ways]
    both = zip(ways, pairs, strict=True)
    return min(apart(pair.part(two, 0), way.part(whole, 0)) for way, pair in both) > _ROUNDING


def _first(specimen: FrozenCopy, inputs: Inputs, count: int) -> Inputs:
    """Return the inputs of the first samples only."""
    axes = {name: w.index(BATCH) for name, w in entering(specimen).items() if BATCH in w}
    return {name: _narrow(value, axes.get(name), count) for name, value in inputs.items()}


def _narrow(value: object, axis: int | None, count: int) -> object:
    """Return the first samples of an input that has some."""
    return value.narrow(axis, 0, count) if isinstance(value, Tensor) and axis is not None else value


def observe_longer(network: ModelCase) -> Iterator[Pass]:
    """Call the model with the longer inputs that are promised, in evaluation mode."""
    if network.case:
        return
    promised = dict(network.model.longer)
    longer = network.with_sizes(**promised)
    at = ", ".join(f"{name} = {size}" for name, size in promised.items())
    try:
        with torch.no_grad():
            outputs = longer.call(longer.build().eval(), longer.draw())
    except SubjectError as fault:
        why = describe_error(fault.__cause__ or fault)
        yield longer.make_event("longer fails", at=at, measured=1.0, detail=why)
        return
    for name, tensor in outputs.tensors.items():
        bad, of = int((~tensor.isfinite()).sum()), tensor.numel()
        yield longer.make_event("longer", place=name, at=at, measured=bad, count=bad, of=of)
    if len(promised) == 1:
        yield from _shapes(network, longer, outputs, at)


def _shapes(network: ModelCase, longer: ModelCase, outputs: Outputs, at: str) -> Iterator[Pass]:
    """Yield an event for each output that does not follow the length as it otherwise does."""
    ((dimension, size),) = longer.model.longer.items()
    for name, ways in layouts(FrozenCopy.of(network), dimension).items():
        tensor = outputs.tensors.get(name)
        if not ways or tensor is None or ways[0].axis >= tensor.ndim:
            continue
        found = tensor.shape[ways[0].axis]
        expected = ways[0].outer * ways[0].inner * size
        if found != expected:
            detail = f"{found} along axis {ways[0].axis} instead of {expected} along it"
            yield longer.make_event("longer shape", place=name, at=at, measured=1.0, detail=detail)
