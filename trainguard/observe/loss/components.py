"""The probes of what a loss is made of: its `components`, and the `bins` of its likelihood."""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points


def components(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how strongly each component pulls: the median norm of its gradient over the points.

    "component", labelled with its name. Where the total is declared and made from the components,
    each is multiplied by the weight that it has in the total.
    """
    norms: dict[str, list[Tensor]] = {name: [] for name in made.loss.components}
    count = len(next(iter(points.values())))
    for index in range(count):
        point = made.single(points, index, grad=True)
        leaves = [point[name] for name in made.differentiable]
        parts = made.component.parts(point)
        for name, found in norms.items():
            found.append(_pull(parts, name, made.loss.total, leaves))
    for name, found in norms.items():
        finite = torch.stack(found)
        finite = finite[finite.isfinite()]
        typical = finite.median() if len(finite) else torch.tensor(torch.nan)
        yield Key("component", label=name), Measured(typical.expand(count), torch.zeros(count))


def bins(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the sum of the probabilities exp(-loss) over every value that the target can take.

    "likelihood": that sum, which is one for a likelihood.
    """
    name = made.loss.likelihood or ""
    listed = made.box.domains[name].list_values(made.box.sizes) or ()
    values = torch.tensor(listed, dtype=torch.float64).to(points[name])
    sums = []
    for index in range(len(points[name])):
        total = torch.zeros((), dtype=made.box.dtype)
        for chunk in torch.split(values, made.batch):
            many = {other: t[index].expand(len(chunk), *t.shape[1:]) for other, t in points.items()}
            many[name] = chunk.view(-1, *[1] * (points[name].ndim - 1)).expand_as(many[name])
            total = total + (-made.values(many)).exp().sum()
        sums.append(total)
    found = torch.stack(sums)
    yield Key("likelihood", name), Measured(found, (found - 1).abs(), torch.ones_like(found))


def _pull(parts: dict[str, Tensor], name: str, total: str | None, leaves: list[Tensor]) -> Tensor:
    """Return the norm of one component's gradient, times its weight in the total."""
    part = parts[name]
    if not part.requires_grad:
        return torch.zeros(())
    found = torch.autograd.grad(part.sum(), leaves, retain_graph=True, allow_unused=True)
    weight = torch.ones(())
    if total is not None and parts[total].requires_grad:
        slope = torch.autograd.grad(parts[total].sum(), part, retain_graph=True, allow_unused=True)
        weight = weight if slope[0] is None else slope[0].abs().mean()
    reached = [gradient.flatten() for gradient in found if gradient is not None]
    return weight * torch.cat(reached).norm() if reached else torch.zeros(())
