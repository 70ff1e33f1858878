"""The probes that compare one gradient with another: low precision with float64, and devices."""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainguard.observe.loss.batching import evaluator
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.devices import present
from trainguard.observe.tools.points import Points


def precision(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the low-precision gradient is from float64's at the same numbers.

    "precision": |low - exact| / max(|exact|, typical), with the norms taken over all inputs of a
    point and typical the median |exact| of the points: close to its minimum every loss is a
    difference of nearly equal numbers, and what is lost there moves next to nothing. A regime of
    small losses is judged by declaring it: then its own gradients are the typical ones.
    """
    low = _flat(made, points)
    exact_points = {name: t.double() if t.is_floating_point() else t for name, t in points.items()}
    exact = _flat(_twin(made, made.component.device, torch.float64), exact_points)
    error, size = (low.double() - exact).norm(dim=1), exact.norm(dim=1)
    finite = size[size.isfinite()]
    typical = finite.median() if len(finite) else size.new_tensor(0.0)
    scale = torch.maximum(size, typical).clamp_min(torch.finfo(low.dtype).tiny)
    relative = torch.where(error.isfinite() & scale.isfinite(), error / scale, 0.0)
    yield Key("precision"), Measured(relative, relative, scale=size)


def devices(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the gradients of other devices are from the cpu's.

    "device", labelled with the device: |there - here| / |here| over all inputs of a point.
    """
    here = _flat(made, points)
    size = here.norm(dim=1)
    for device in present():
        if device != made.component.device:
            there = _flat(_twin(made, device, made.component.dtype),
                          {name: t.to(device) for name, t in points.items()})  # fmt: skip
            error = (there.to(here) - here).norm(dim=1)
            relative = torch.where(error.isfinite(), error / (size + 1), 0.0)
            yield Key("device", label=device), Measured(relative, relative, scale=size)


def _twin(made: Evaluator, device: str, dtype: torch.dtype) -> Evaluator:
    """Return an evaluator of the same structure on another device or in another dtype."""
    component = made.component
    return evaluator(made.loss, component.structure, device, dtype, protect=component.protect,
                     whole=True)  # fmt: skip


def _flat(made: Evaluator, points: Points) -> Tensor:
    """Return all gradients of each point in one row, [N, M]."""
    gradients, _ = made.gradients(points)
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
