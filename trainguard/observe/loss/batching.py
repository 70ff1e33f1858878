"""How a loss treats a batch: how many points are evaluated at once, and what its samples mix."""

import warnings
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.observe.loss.call import LossCase
from trainguard.observe.loss.evaluate import Evaluator, Mode
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Box, Points, draw, uniform
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

_PROBED = 64
_MORE = 3  # padded positions that are added
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
    component = LossCase(loss, structure, device, dtype, protect)
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
    return not slow and together.dtype == apart.dtype and _same(together, apart)


def _same(a: Tensor, b: Tensor, terms: Tensor | None = None) -> bool:
    """Say whether two results agree up to rounding; `terms` are what was added up on the way."""
    rounding = 64 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    size = 1.0 if terms is None else 1.0 + float(terms.abs().mean())
    return torch.allclose(a, b.to(a.dtype), rtol=rounding, atol=rounding * size, equal_nan=True)


def mixing(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the loss of a batch against the losses of its samples one by one.

    "mixing": the batch's loss, `reference` what its samples give by themselves: their stack, sum
    or mean, as the declaration promises. For a stack, the sample that differs most.
    """
    if is_random(made, points):
        raise Unjudged("the loss draws random numbers, so a sample alone differs from the batch")
    together, apart = [], []
    for index in range(len(next(iter(points.values())))):
        point = made.single(points, index)
        batch = made.component.total(point).detach()
        samples = _apart(made, point)
        alone = torch.stack([made.component.total(one).detach().sum() for one in samples])
        batch, alone = _comparable(made, batch, alone)
        worst = int((batch - alone).abs().nan_to_num(nan=-1.0).argmax())
        together.append(batch[worst])
        apart.append(alone[worst])
    measured, reference = torch.stack(together), torch.stack(apart)
    error = (measured - reference).abs() / (1 + reference.abs())
    yield Key("mixing"), Measured(measured, error.nan_to_num(nan=-1.0), reference)


def padding(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure what the numbers in padded positions do, one input at a time.

    "padding": the loss, `reference` what it is with a plain number in each padded position of the
    input: the one nearest to zero, which is the `scale`.
    "padding_gradient": the largest gradient at a padded position.
    "padding_length": the loss, `reference` what it is with `scale` padded positions more.
    """
    here = made.values(points)
    yield from _longer_padding(made, points, here)
    gradients, _ = made.gradients(points)
    for mask, name in _masked_inputs(made):
        padded, neutral = _padding_mask(made, points, mask, name), _neutral(made, name)
        edited = {**points, name: points[name].masked_fill(padded, neutral)}
        there = made.values(edited)
        error = (here - there).abs() / (1 + there.abs())
        changed, scale = error.nan_to_num(nan=-1.0), torch.full_like(here, neutral)
        yield Key("padding", name, mask), Measured(here, changed, there, scale)
        if name in gradients:
            leaked = torch.where(padded, gradients[name], 0).abs().flatten(1)
            size, at = leaked.nan_to_num(nan=0.0).max(1)
            yield Key("padding_gradient", name, mask), Measured(size, size, coordinate=at)


def _longer_padding(
    made: Evaluator, points: Points, here: Tensor
) -> Iterator[tuple[Key, Measured]]:
    """Measure what more padding does, where masks may be of any length and the loss takes it."""
    domains = made.box.domains
    for mask in [name for name, domain in domains.items() if domain.kind == "mask"]:
        word = (domains[mask].names or ("",))[-1]
        if word != (domains[mask].shape or ("",))[-1] or isinstance(made.loss.sizes.get(word), int):
            continue
        try:
            there = made.values(_lengthen(made, points, mask, word))
        except SubjectError:
            continue
        error = (here - there).abs() / (1 + there.abs())
        added = torch.full_like(here, _MORE)
        changed = error.nan_to_num(nan=-1.0)
        yield Key("padding_length", label=mask), Measured(here, changed, there, added)


def _lengthen(made: Evaluator, points: Points, mask: str, word: str) -> Points:
    """Return points with more positions of one dimension, all of which a mask marks as padding."""
    longer = {}
    for name, tensor in points.items():
        shape = made.box.domains[name].shape or ()
        for axis in [place + 1 for place, own in enumerate(shape) if own == word]:
            more = tensor.narrow(axis, 0, 1).expand(
                *[_MORE if place == axis else -1 for place in range(tensor.dim())]
            )
            if name == mask:
                more = torch.as_tensor(made.box.domains[name].values[1]).to(more).expand_as(more)
            tensor = torch.cat([tensor, more], axis)
        longer[name] = tensor
    return longer


def is_random(made: Evaluator, points: Points) -> bool:
    """Say whether the seed changes the loss."""
    point = made.single(points, 0)
    first, second = (made.component.total(point, seed).detach() for seed in (0, 1))
    return not torch.allclose(first, second, equal_nan=True)


def _apart(made: Evaluator, point: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Split one batch into its samples, each a batch of one."""
    axes = {name: (made.box.domains[name].shape or ()).index(BATCH)
            for name in point if BATCH in made.box.domains[name].names}  # fmt: skip
    count = made.box.sizes[BATCH]
    return [
        {name: t.narrow(axes[name], i, 1) if name in axes else t for name, t in point.items()}
        for i in range(count)
    ]


def _comparable(made: Evaluator, batch: Tensor, alone: Tensor) -> tuple[Tensor, Tensor]:
    """Bring both sides to what the declared reduction promises."""
    if made.loss.reduction == "none" and batch.ndim > 0 and len(batch) == len(alone):
        return batch.flatten(1).sum(1) if batch.ndim > 1 else batch, alone
    whole = alone.mean() if made.loss.reduction == "mean" else alone.sum()
    return batch.sum().view(1), whole.view(1)


def _neutral(made: Evaluator, name: str) -> float:
    """Return the value of an input's domain that is nearest to zero."""
    domain = made.box.domains[name]
    if domain.kind == "choice":
        return min((float(v) for v in domain.values if isinstance(v, int | float)), key=abs)
    low, high = made.box.span(name)
    listed = domain.list_values(made.box.sizes)
    return min(listed, key=abs) if listed else min(max(0.0, low), high)


def _masked_inputs(made: Evaluator) -> list[tuple[str, str]]:
    """List the pairs of a mask and an input that has all the mask's dimensions."""
    domains = made.box.domains
    masks = [name for name, domain in domains.items() if domain.kind == "mask"]
    return [
        (mask, name)
        for mask in masks
        for name, domain in domains.items()
        if domain.kind != "mask" and set(domains[mask].shape or ()) <= set(domain.shape or ())
    ]


def _padding_mask(made: Evaluator, points: Points, mask: str, name: str) -> Tensor:
    """Return where an input is padding, in the input's own shape, [N, *shape]."""
    own, theirs = made.box.domains[mask].shape or (), made.box.domains[name].shape or ()
    padding = torch.as_tensor(points[mask] == made.box.domains[mask].values[1])
    order = [own.index(word) for word in theirs if word in own]
    padding = padding.permute(0, *(axis + 1 for axis in order))
    for position, word in enumerate(theirs):
        if word not in own:
            padding = padding.unsqueeze(position + 1)
    return padding.expand_as(points[name])
