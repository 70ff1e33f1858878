"""What the probes of one sample and of longer inputs find in real models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.observer import observe

ROUNDING = 1e-6
SIGNAL = tg.real("B T 3", -1, 1)


class Net(nn.Module):
    """A layer, and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Return what the function makes of the output."""
        return self.function(self.layer(x))


def passes(function: Callable[[Tensor], Any], probe: str, **more: Any) -> dict[str, Pass]:
    """Observe a model, and return by quantity what is not as it should be."""
    declared = {"sizes": {"T": (4, 6)}, **more}
    model = tg.Model(lambda: Net(function), x=SIGNAL, name="net", **declared)
    trace = observe(model, "cpu", "float32", Settings(profile="quick")).trace(probe)
    assert list(trace)
    return {seen.quantity: seen for seen in trace if seen.measured > ROUNDING}


def refused(x: Tensor) -> Tensor:
    """Raise for one sample."""
    if len(x) == 1:
        raise ValueError("expected more than one sample")
    return x


def fixed(x: Tensor) -> Tensor:
    """Raise for all batches but those of four."""
    if len(x) not in (4, 5):
        raise ValueError("expected 4 samples")
    return x


@pytest.mark.parametrize(
    ("function", "quantity", "detail"),
    [
        (refused, "single fails", "ValueError: expected more than one sample"),
        (lambda x: x.mean((1, 2)).squeeze(), "single shape", "shape () instead of shape (1,)"),
        (lambda x: x[:, :1].squeeze(), "single shape", "shape (3,) instead of shape (1, 3)"),
        (lambda x: x + (len(x) == 1), "single", ""),
    ],
    ids=["refused", "number", "row", "other"],
)
def test_one_sample(function: Callable[[Tensor], Any], quantity: str, detail: str) -> None:
    """What goes wrong with one sample alone is told as it is."""
    found = passes(function, "single")
    assert set(found) == {quantity}
    assert found[quantity].detail == detail


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x.flatten(0, 1),
        lambda x: x.transpose(0, 1),
        lambda x: x.mean(),
        lambda x: x.mean((1, 2)) @ x.mean((1, 2)),
        lambda x: x - x.mean(0),
        lambda x: x + torch.randn(x.shape),
    ],
    ids=["plain", "flattened", "time first", "total", "scalar", "mixing", "noise"],
)
def test_one_sample_as_in_a_batch(function: Callable[[Tensor], Any]) -> None:
    """Samples that mix, and noise, are no matter of one sample."""
    model = tg.Model(lambda: Net(function), x=SIGNAL, name="net", sizes={"T": 5})
    trace = observe(model, "cpu", "float32", Settings(profile="quick")).trace("single")
    assert [seen for seen in trace if seen.measured > ROUNDING] == []


@pytest.mark.parametrize(
    ("function", "sizes", "sentence"),
    [
        (lambda x: x, {"B": (2, 8)}, "declared to have 2 to 8 samples"),
        (fixed, {"B": 4}, "it takes batches of 4 samples only"),
    ],
    ids=["declared", "fixed"],
)
def test_batches_that_never_have_one_sample(
    function: Callable[[Tensor], Any], sizes: dict[str, Any], sentence: str
) -> None:
    """A declared range, and a model for one size of batch, are not judged."""
    with pytest.raises(Unjudged, match=sentence):
        passes(function, "single", sizes=sizes)


@pytest.mark.parametrize(
    ("function", "quantity", "detail"),
    [
        (lambda x: x + torch.zeros(6)[: x.shape[1], None], "longer fails", "RuntimeError"),
        (lambda x: x[:, :6], "longer shape", "6 along axis 1 instead of 20 along it"),
        (lambda x: x / (x.shape[1] < 10), "longer", ""),
    ],
    ids=["table", "cut", "infinite"],
)
def test_longer_inputs(function: Callable[[Tensor], Any], quantity: str, detail: str) -> None:
    """A table that ends, a cut and a division by zero are each told."""
    found = passes(function, "longer", longer={"T": 20})
    assert set(found) == {quantity}
    assert found[quantity].detail.startswith(detail)
    assert found[quantity].at == "T = 20"


@pytest.mark.parametrize(
    "function", [lambda x: x, lambda x: x.mean(1), lambda x: x[:, ::2], lambda x: x.flatten(0, 1)]
)
def test_longer_inputs_that_work(function: Callable[[Tensor], Any]) -> None:
    """Outputs follow the length as they did, or do not."""
    assert passes(function, "longer", longer={"T": 20}) == {}
