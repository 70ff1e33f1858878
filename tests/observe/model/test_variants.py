"""What the probes of checkpointing, compiling, low precision and devices find in real models."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model import variants
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)


def passes(model: tg.Model, probe: str, dtype: str = "float32") -> dict[str, list[Pass]]:
    """Observe a model with one probe, and return what it measured by quantity."""
    found: dict[str, list[Pass]] = {}
    trace = observe(model, "cpu", dtype, Settings(profile="quick")).trace(probe)
    for seen in trace:
        found.setdefault(seen.quantity, []).append(seen)
    return found


class Deep(nn.Module):
    """Two blocks with dropout, checkpointed in one way or another, and a head without."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.block()
        self.second = self.block()
        self.head = nn.Linear(8, 2)
        self.how: dict[str, Any] | None = None

    @staticmethod
    def block() -> nn.Module:
        """Return a block."""
        return nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        """Return two numbers for each sample."""
        for block in (self.first, self.second):
            x = block(x) if self.how is None else checkpoint(block, x, **self.how)
        return self.head(x)


def deep(**how: Any) -> tg.Model:
    """Declare a deep model that is checkpointed in a given way."""
    return tg.Model(Deep, x=X, checkpoint=lambda model: setattr(model, "how", how or None))


def worst(found: dict[str, list[Pass]]) -> float:
    """Return how far the worst gradient is off."""
    return max(seen.measured for seen in found["checkpointed"])


def test_checkpointing_that_keeps_the_random_state() -> None:
    """Dropout is the same in the recomputation, and fewer tensors are kept."""
    found = passes(deep(use_reentrant=False), "checkpointing")
    assert worst(found) == 0.0
    assert {seen.place for seen in found["checkpointed"]} >= {"first.0.weight", "head.bias"}
    (saved,) = found["saved"]
    assert saved.measured < saved.reference


def test_checkpointing_that_draws_anew() -> None:
    """The gradient is that of another network."""
    assert (
        worst(passes(deep(use_reentrant=False, preserve_rng_state=False), "checkpointing")) > 0.01
    )


def test_checkpointing_that_loses_a_gradient() -> None:
    """A reentrant checkpoint of an input without a gradient gives none to the first block."""
    found = passes(deep(use_reentrant=True), "checkpointing")
    lost = {seen.place for seen in found["checkpointed"] if seen.measured == float("inf")}
    assert lost == {
        f"{part}.0.{kind}" for part in ("first", "second") for kind in ("weight", "bias")
    }


def test_checkpointing_that_is_not_switched_on() -> None:
    """As many tensors are kept as before."""
    (saved,) = passes(deep(), "checkpointing")["saved"]
    assert saved.measured == saved.reference


def test_checkpointing_that_fails() -> None:
    """What is raised is told, and that it is so with checkpointing only."""
    (seen,) = passes(deep(use_reentrant=False, context_fn=len), "checkpointing")[
        "checkpointing fails"
    ]
    assert seen.detail.startswith("TypeError")


def test_a_model_that_is_random_by_itself_is_not_judged() -> None:
    """Where two steps from one seed differ, nothing can be said of a third."""
    generator = torch.Generator()

    class Own(Deep):
        """A deep model with noise of a generator that nobody else knows."""

        def forward(self, x: Tensor) -> Tensor:
            """Return the output for a noisy input."""
            return super().forward(x + torch.randn(x.shape, generator=generator))

    model = tg.Model(
        Own, x=X, checkpoint=lambda model: setattr(model, "how", {"use_reentrant": False})
    )
    with pytest.raises(Unjudged, match="two steps from the same seed differ"):
        passes(model, "checkpointing")
    model = tg.Model(Own, x=X, dtypes=("float32", "bfloat16"))
    with pytest.raises(Unjudged, match="not the same twice"):
        passes(model, "precision", "bfloat16")


class Counted(nn.Module):
    """Features with positions that are counted in one dtype or another."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 8)
        self.outside = nn.Linear(8, 8)
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of each position."""
        y = self.inside(x)
        dtype = y.dtype if self.low else torch.float32
        return self.outside(y + torch.arange(y.shape[1], dtype=dtype)[:, None].sin())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision(dtype: str) -> None:
    """Positions counted in the low type are far off, others by a few times its epsilon."""
    sizes = {"T": 6000 if dtype == "float16" else 600, "B": 2}
    errors = []
    for low in (True, False):
        model = tg.Model(
            Counted, arguments={"low": low}, x=tg.real("B T 4", -1, 1), sizes=sizes,
            dtypes=("float32", dtype),
        )  # fmt: skip
        (seen,) = passes(model, "precision", dtype)["precision"]
        errors.append(seen.measured)
        assert 0 < seen.reference < 1e-6
        assert 0 < seen.scale < 16 * torch.finfo(getattr(torch, dtype)).eps
    assert errors[0] > 16 * 2 * torch.finfo(getattr(torch, dtype)).eps
    assert errors[1] < 2 * torch.finfo(getattr(torch, dtype)).eps


def test_the_noise_of_a_model_that_is_float32_throughout() -> None:
    """Where it cannot be in float64, its parameters are moved by their last digit."""

    class Stubborn(nn.Module):
        """A product with a constant of float32."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.constant = torch.eye(4)

        def forward(self, x: Tensor) -> Tensor:
            """Return the product."""
            return self.layer(x) @ self.constant

    (seen,) = passes(tg.Model(Stubborn, x=X, dtypes=("bfloat16",)), "precision", "bfloat16")[
        "precision"
    ]
    assert 0 < seen.reference < 1e-6


class Branches(nn.Module):
    """A layer that computes something else when it is compiled."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, scaled where it is compiled."""
        y = functional.gelu(self.layer(x))
        return y * self.factor if torch.compiler.is_compiling() else y


@pytest.mark.skipif(os.name == "nt", reason="compiling needs a C++ compiler")
@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0.0, 1e-5), (1.01, 5e-3, 0.05)])
def test_compiled(
    factor: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients are compared; here without the code generator, which takes seconds."""
    make = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module: make(module, backend="aot_eager"))
    model = tg.Model(Branches, arguments={"factor": factor}, x=X, compiled=True)
    found = passes(model, "compiled")["compiled"]
    assert {seen.place for seen in found} == {"output", "the gradient"}
    assert all(least <= seen.measured <= most for seen in found)


def test_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler raises is told; without a compiler nothing is judged."""

    def refuse(message: str) -> Any:
        """Return a compiler that raises when the module is called."""

        def call(*_: Any, **__: Any) -> None:
            """Raise."""
            raise RuntimeError(message)

        return lambda module: setattr(module, "forward", call) or module

    model = tg.Model(Branches, arguments={"factor": 1.0}, x=X, compiled=True)
    monkeypatch.setattr(torch, "compile", refuse("unsupported"))
    (seen,) = passes(model, "compiled")["compiling fails"]
    assert "unsupported" in seen.detail
    monkeypatch.setattr(torch, "compile", refuse("InvalidCxxCompiler: no g++"))
    with pytest.raises(Unjudged, match="nothing can be compiled here"):
        passes(model, "compiled")


class Placed(nn.Module):
    """A layer that is off on a device of another name, or fails there for want of its table."""

    def __init__(self, off: float = 0.0, table: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.off = off
        self.table = table
        self.moved = False

    def to(self, device: Any, *args: Any, **keywords: Any) -> Any:
        """Remember whether it was moved to the cpu by its other name."""
        self.moved = device == "cpu:0"
        return super().to(device, *args, **keywords)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        if self.table and self.moved:
            raise RuntimeError("Expected all tensors to be on the same device")
        return self.layer(x) + (self.off if self.moved else 0.0)


@pytest.mark.parametrize(
    ("arguments", "quantity", "measured"),
    [({}, "device", 0.0), ({"off": 0.5}, "device", None), ({"table": True}, "device fails", 1.0)],
)
def test_devices(
    arguments: dict[str, Any],
    quantity: str,
    measured: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second device, which is the cpu under another name, is compared with the first."""
    monkeypatch.setattr(variants, "compared", lambda: ("cpu", "cpu:0"))
    (seen,) = passes(tg.Model(Placed, arguments=arguments, x=X), "devices")[quantity]
    assert seen.at == "cpu:0"
    assert seen.measured > 0.1 if measured is None else seen.measured == measured


def test_a_model_that_fails_under_autocast() -> None:
    """What is raised is told as a matter of low precision."""

    class Fills(nn.Module):
        """A mask with a number that float16 has not."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            """Return the masked output."""
            return self.layer(x).masked_fill(x > 0, -1e9).softmax(-1)

    (seen,) = passes(tg.Model(Fills, x=X, dtypes=("float16",)), "precision", "float16")[
        "precision fails"
    ]
    assert "overflow" in seen.detail
