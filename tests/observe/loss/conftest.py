"""Evaluators of small losses, and what a probe measures with them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator

import trainguard as tg
from trainguard.observe.loss.batching import evaluator
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured, Probe
from trainguard.observe.tools.isolation import isolate
from trainguard.observe.tools.points import Points, draw
from trainguard.observe.tools.structure import Structure


def make(
    function: Callable[..., Any],
    drawn: dict[str, int] | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    whole: bool = False,
    arguments: dict[str, Any] | None = None,
    **declared: Any,
) -> Evaluator:
    """Make the evaluator of a loss; every dimension has size 2 where nothing is said."""
    loss = tg.Loss(function, **declared)
    names = {name for domain in loss.tensors.values() for name in domain.names}
    structure = Structure({**dict.fromkeys(names, 2), **(drawn or {})}, arguments or {})
    return evaluator(loss, structure, "cpu", dtype, whole=whole)


def measure(probe: Probe, made: Evaluator, points: Points | int = 64) -> dict[Key, Measured]:
    """Return what a probe measures at some points, or at as many drawn ones."""
    if isinstance(points, int):
        points = draw(made.box, points, Generator().manual_seed(0))
    with isolate():
        return dict(probe(made, points))


@pytest.fixture(scope="session")
def made() -> Callable[..., Evaluator]:
    """Make the evaluator of a loss."""
    return make


@pytest.fixture(scope="session")
def measured() -> Callable[..., dict[Key, Measured]]:
    """Measure points of a loss with a probe."""
    return measure
