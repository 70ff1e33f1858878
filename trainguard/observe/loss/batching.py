"""Find out how a loss treats its batch, and with that the cheapest sound way to evaluate it."""

import warnings

import torch
from torch import Generator, Tensor

from trainguard.core.errors import SubjectError
from trainguard.observe.loss.call import Component
from trainguard.observe.loss.evaluate import Evaluator, Mode
from trainguard.observe.loss.sampling import draw
from trainguard.observe.tools.points import Box, Points, uniform
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

_PROBED = 64
_LOW = (torch.float16, torch.bfloat16)


def evaluator(
    loss: Loss,
    structure: Structure,
    device: str,
    dtype: torch.dtype,
    *,
    protect: bool = False,
    whole: bool = False,
) -> Evaluator:
    """
    Make an evaluator after a few probing calls that find out how the loss treats its batch.

    `protect` hands copies to the loss; `whole` keeps the batch that the structure has.
    """
    batched = all(BATCH in domain.names for domain in loss.tensors.values())
    free = batched and not whole and BATCH not in loss.sizes
    single = structure.with_sizes(**{BATCH: 1}) if free else structure
    made = _make(loss, single, device, dtype, protect)
    if free:
        made.mode = _batch_mode(_probeable(made))
        if made.mode in (Mode.VMAP, Mode.LOOP):
            # A coupled loss needs the batch that was drawn: alone, a sample has no partners.
            made = _make(loss, structure, device, dtype, protect)
            made.mode = Mode.VMAP
    made.vectorises = _vectorises(made)
    underflows = made.mode is Mode.MEAN and dtype is torch.float16  # divided by a large batch
    if underflows or (made.mode is Mode.VMAP and not made.vectorises):
        made.mode = Mode.LOOP
    return made


def _make(
    loss: Loss, structure: Structure, device: str, dtype: torch.dtype, protect: bool
) -> Evaluator:
    """Make an evaluator with no mode chosen yet."""
    component = Component(loss, structure, device, dtype, protect)
    box = Box(loss.tensors, structure.sizes, dtype, device)
    return Evaluator(component, box, Mode.VMAP, vectorises=False)


def _probeable(made: Evaluator) -> Evaluator:
    """Make an evaluator precise enough to tell a sum from a mean."""
    part = made.component
    if made.box.dtype not in _LOW:
        return made
    return _make(made.loss, part.structure, part.device, torch.float32, part.protect)


def _batch_mode(made: Evaluator) -> Mode:
    """Say whether the loss of a batch is the stack, the sum or the mean of its samples' losses."""
    try:
        points, singles = _finite_singles(made)
    except SubjectError:
        return Mode.VMAP  # a batch of one is no batch to this loss
    count = len(singles)
    if count < 2:
        return Mode.VMAP
    try:
        together = made.component.total(made.flatten(points)).detach()
    except SubjectError:
        return Mode.VMAP  # a batch larger than the declared sizes is no batch to it either
    if together.ndim > 0 and together.shape[0] == count:
        rows = together.reshape(count, -1).sum(1)
        return Mode.ROWS if _same(rows, singles) else Mode.VMAP
    if together.ndim == 0 and _same(together / count, singles.mean(), singles):
        return Mode.SUM
    if together.ndim == 0 and _same(together, singles.mean(), singles):
        return Mode.MEAN
    return Mode.VMAP


def _finite_singles(made: Evaluator) -> tuple[Points, Tensor]:
    """
    Draw points with a finite loss, and return them with the losses that they have alone.

    They come from everywhere, edges included: a clamp after the reduction looks like a plain mean
    as long as no sample gets near it.
    """
    points = draw(made.box, _PROBED, Generator().manual_seed(0))
    alone = [made.component.total(made.single(points, i)).detach() for i in range(_PROBED)]
    singles = torch.stack([one.sum() for one in alone])
    finite = singles.isfinite()
    return {name: t[finite] for name, t in points.items()}, singles[finite]


def _vectorises(made: Evaluator) -> bool:
    """
    Say whether vmap gives what single calls give, and gives it faster.

    Not in low precision: vmap replaces fused kernels by their steps, which round more often.
    """
    if made.box.dtype in _LOW:
        return False
    points = uniform(made.box, 2, Generator().manual_seed(0))
    apart = made.each(points)  # `vectorises` is still False: a plain loop
    made.vectorises = True
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            together = made.each(points)
            made.apart().gradients(points)  # what is computed again in backward may not
    except (SubjectError, RuntimeError, ValueError, TypeError):
        return False
    finally:
        made.vectorises = False
    slow = any("performance drop" in str(warning.message) for warning in warned)
    return not slow and _same(together, apart)


def _same(a: Tensor, b: Tensor, terms: Tensor | None = None) -> bool:
    """Say whether two results agree up to rounding; `terms` are what was added up on the way."""
    rounding = 64 * torch.finfo(a.dtype).eps
    size = 1.0 if terms is None else 1.0 + float(terms.abs().mean())
    return torch.allclose(a, b, rtol=rounding, atol=rounding * size, equal_nan=True)
