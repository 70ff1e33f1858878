"""What the probes of samples and of the future find in real models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model import isolation
from trainguard.observe.model.observer import observe

SIZES = {"T": (4, 6)}
SIGNAL = tg.real("B T 3", -1, 1)
TOKENS = tg.integer("B T", 0, 9)
ROUNDING = 1e-5


def passes(model: tg.Model, probe: str) -> list[Pass]:
    """Observe a model with one probe."""
    return list(observe(model, "cpu", "float32", Settings()).trace(probe))


def leaks(model: tg.Model, probe: str) -> set[str]:
    """Return the outputs that depend on what they must not; each must have been judged."""
    found = passes(model, probe)
    assert found
    return {seen.place for seen in found if seen.measured > ROUNDING}


class Layer(nn.Module):
    """A linear layer of width 3, and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Return what the function makes of it."""
        return self.function(self.linear(x))


class Words(nn.Module):
    """Tokens, embedded in one of several ways, and a function of the embedding."""

    def __init__(self, function: Callable[[Tensor], Any], *, module: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 3)
        self.module = module
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Return what the function makes of the embedding."""
        if self.module:
            return self.function(self.embed(x))
        return self.function(functional.embedding(x, self.embed.weight))


def of(function: Callable[[Tensor], Any], x: Any = SIGNAL, **more: Any) -> tg.Model:
    """Declare a layer with a function behind it, with an input of a given domain."""
    make = Words if x.kind == "integer" else Layer
    return tg.Model(lambda: make(function), inputs={"x": x}, name="net", sizes=SIZES, **more)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(0),
        lambda x: x - x.mean(0),
        lambda x: x + 1e-3 * x.roll(1, 0),
        lambda x: functional.batch_norm(x.flatten(1), None, None, training=True),
        lambda x: x.flatten(0, 1).cumsum(0),
        lambda x: torch.cdist(x.flatten(1), x.flatten(1)).sum(1),
    ],
    ids=["softmax", "mean", "roll", "batch statistics", "flattened", "distances"],
)
def test_samples_that_mix(function: Callable[[Tensor], Any]) -> None:
    """Whatever mixes the batch is found, in one axis with the time too."""
    assert leaks(of(function), "samples") == {"output"}
    assert leaks(of(function, TOKENS), "samples") == {"output"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: x.flatten(0, 1),
        lambda x: x.transpose(0, 1).flatten(0, 1),
        lambda x: x.transpose(0, 2),
        lambda x: x.mean(1).squeeze(),
        lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1),
        lambda x: functional.dropout(x, 0.5),
        lambda x: {"own": x, "pairs": x.mean(1) @ x.mean(1).T, "loss": x.mean()},
    ],
    ids=["softmax", "batch first", "time first", "last", "squeezed", "fft", "dropout", "pairs"],
)
def test_samples_that_do_not_mix(function: Callable[[Tensor], Any]) -> None:
    """The axis of the samples is found wherever it is; tables and totals are no samples' own."""
    assert leaks(of(function), "samples") == set()


def test_what_is_behind_a_closed_gate_is_seen() -> None:
    """A parameter that begins at zero hides nothing."""

    class Gated(Layer):
        """A layer that adds a mean over the batch as soon as its gate opens."""

        def __init__(self) -> None:
            super().__init__(lambda x: x)
            self.gate = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            """Return the layer's output and the mean behind the gate."""
            return self.linear(x) + self.gate * self.linear(x).mean(0)

    assert leaks(tg.Model(Gated, x=SIGNAL, sizes=SIZES), "samples") == {"output"}


def test_an_input_without_a_gradient_is_edited() -> None:
    """Tokens that no module embeds, and outputs without a graph, are compared instead."""
    for function, expected in ((lambda x: x.softmax(0), {"output"}), (torch.sigmoid, set())):
        model = tg.Model(
            lambda f=function: Words(f, module=False), inputs={"x": TOKENS}, name="n", sizes=SIZES
        )
        assert leaks(model, "samples") == expected
        assert leaks(of(lambda x, f=function: f(x).detach()), "samples") == expected


def test_what_is_drawn_at_random_is_no_leak() -> None:
    """How many numbers one sample draws moves those of the next, without a gradient."""

    def noisy(x: Tensor) -> Tensor:
        """Add noise to each sample, of which some draw more than others."""
        rows = []
        for row in x.detach():
            if row.sum() > 0:
                torch.rand(3)
            rows.append(row + torch.randn(row.shape))
        return torch.stack(rows)

    assert leaks(of(noisy), "samples") == set()


def test_outputs_without_samples_are_not_judged() -> None:
    """An output of the whole batch belongs to nobody in it."""
    with pytest.raises(Unjudged, match="none of its outputs has one part for each sample"):
        passes(of(lambda x: x.sum()), "samples")


def test_batch_norm_that_keeps_no_statistics_is_not_judged() -> None:
    """It mixes in evaluation too, as its author asked it to; one that keeps them does not."""
    for kept in (True, False):
        model = tg.Model(
            lambda kept=kept: nn.Sequential(
                nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=kept)
            ),
            name="norm",
            inputs={"input": tg.real("B 3", -1, 1)},
        )
        if kept:
            assert leaks(model, "samples") == set()
            continue
        with pytest.raises(Unjudged, match="on purpose"):
            passes(model, "samples")


def causal(function: Callable[[Tensor], Any], x: Any = SIGNAL) -> tg.Model:
    """Declare a causal model."""
    return of(function, x, causal="T")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.roll(-1, 1),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: functional.avg_pool1d(x.mT, 3, 1, 1).mT,
        lambda x: x.flip(1).cumsum(1).flip(1).flatten(0, 1),
        lambda x: functional.layer_norm(x, x.shape[1:]),
        lambda x: x.unflatten(1, (-1, 2)).mean(2).repeat_interleave(2, 1),
    ],
    ids=["roll", "mean", "both sides", "backwards", "norm over time", "blocks"],
)
def test_a_future_that_leaks(function: Callable[[Tensor], Any]) -> None:
    """Whatever looks ahead is found."""
    assert leaks(causal(function), "future") == {"output"}
    assert leaks(causal(function, TOKENS), "future") == {"output"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(1),
        lambda x: x.roll(1, 1) * (torch.arange(x.shape[1]) > 0).view(1, -1, 1),
        lambda x: x.cumsum(1).flatten(0, 1),
        lambda x: torch.fft.irfft(
            torch.fft.rfft(x, n=2 * x.shape[1], dim=1), n=2 * x.shape[1], dim=1
        )[:, : x.shape[1]],
        lambda x: (x.cumsum(1), x.mean(1)),
    ],
    ids=["sum", "shift", "flattened", "fft", "and a summary"],
)
def test_a_future_that_does_not_leak(function: Callable[[Tensor], Any]) -> None:
    """Sums over the past, shifts and what an FFT rounds are causal; a summary is not judged."""
    assert leaks(causal(function), "future") == set()


@pytest.mark.parametrize(("probe", "x"), [("samples", SIGNAL), ("future", TOKENS)])
def test_one_backward_for_each_case(probe: str, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is taken once in each case, however many elements there are."""
    calls = []
    take = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or take(*a, **k))
    leaks(causal(lambda x: x.cumsum(1), x), probe)
    assert len(calls) == 2


def test_a_weight_norm_that_cannot_be_copied() -> None:
    """A module that refuses to be copied is built again for each call."""

    def build() -> nn.Module:
        """Return a convolution under weight norm of the old kind."""
        return nn.utils.weight_norm(nn.Conv1d(3, 3, 3, padding=1))

    model = tg.Model(build, inputs={"input": tg.real("B 3 T", -1, 1)}, sizes=SIZES, causal="T")
    assert leaks(model, "samples") == set()
    assert leaks(model, "future") == {"output"}


def test_the_cut_is_no_end_of_a_block() -> None:
    """No small block, and none that divides the length, ends where the outputs are cut."""
    cuts = {size: isolation._cut(size) for size in range(2, 100)}
    for size, cut in cuts.items():
        blocks = [b for b in range(2, size + 1) if b < 5 or size % b == 0]
        assert 0 < cut < size
        assert cut == 1 or all(cut % block for block in blocks)
    assert cuts[32] == 17


def test_a_model_that_edits_its_parameters() -> None:
    """Each call is made on parameters of its own, however they are edited."""

    class Decays(nn.Module):
        """A layer that shrinks in each call."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            """Return the output, detached, so that it is edited and compared."""
            self.linear.weight.data.mul_(0.5)
            return self.linear(x).detach()

    assert leaks(tg.Model(Decays, x=SIGNAL, sizes=SIZES, causal="T"), "samples") == set()
    assert leaks(tg.Model(Decays, x=SIGNAL, sizes=SIZES, causal="T"), "future") == set()


def test_a_backward_that_refuses() -> None:
    """Where the model's own backward raises, inputs are edited and compared."""

    class Refuses(torch.autograd.Function):
        """The identity, with an assertion in its backward."""

        @staticmethod
        def forward(_context: Any, x: Tensor) -> Tensor:
            """Return a copy."""
            return x.clone()

        @staticmethod
        def backward(_context: Any, *_gradients: Tensor) -> Any:
            """Raise."""
            raise AssertionError("only in training mode")

    assert leaks(of(lambda x: Refuses.apply(x.softmax(0))), "samples") == {"output"}
    assert leaks(of(Refuses.apply), "samples") == set()
