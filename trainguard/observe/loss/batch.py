"""The probes of what a batch may do: `mixing` between samples, and `padding` into the loss."""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainguard.core.errors import Unjudged
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points
from trainguard.subjects.domain import BATCH


def mixing(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the loss of a batch against the losses of its samples one by one.

    "mixing": the batch's loss, `reference` what its samples give by themselves: their stack, sum
    or mean, as the declaration promises. For a stack, the sample that differs most.
    """
    if _is_random(made, points):
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
    """
    here = made.values(points)
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


def _is_random(made: Evaluator, points: Points) -> bool:
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
