"""Functions that are said to undo each other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations.inverses import _undoes

Make = Callable[[Any], Any]


class Scale:
    """Two functions under the names that many give them."""

    def __init__(self, make: Make, undo: Make) -> None:
        self.make, self.undo = make, undo

    def transform(self, numbers: Any) -> Any:
        """Return numbers for a model."""
        return self.make(numbers)

    def inverse_transform(self, numbers: Any) -> Any:
        """Return numbers of the world."""
        return self.undo(numbers)


class Holder:
    """What holds a scale, as a trainer does."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale


def looks(scale: Any, steps: int = 6) -> tuple[list[Probe], bool]:
    """Train for a few steps beside a scale; return what was seen, and whether it was tried."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    holder = Holder(scale)
    with Recorder("x") as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(16, 4)), torch.randn(16, 1)).backward()
            optimizer.step()
    assert holder.scale is scale
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "inverse"]
    return found, "inverse" in str(recorder.trace.conditions["looked"])


BROKEN = {
    "order": (lambda y: (y.log() - 1) / 2, lambda z: z.exp() * 2 + 1),
    "variance": (lambda y: (y - 3) / 2, lambda z: z * 4 + 3),
    "no mean": (lambda y: (y - 3) / 2, lambda z: z * 2),
    "arrays": (lambda y: (np.log(y) - 1) / 2, lambda z: np.exp(z.astype("f8")) * 2 + 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_undo_is_told(case: str) -> None:
    """With the names of both, the line of the second, and how far they are apart."""
    (probe,), _ = looks(Scale(*BROKEN[case]))
    assert probe.label == "Scale.inverse_transform of Scale.transform"
    assert probe.measured > probe.reference == 0.1
    assert "test_inverses.py:" in probe.source


def _scale_itself(rows: torch.Tensor) -> torch.Tensor:
    """Return rows around zero."""
    return (rows - rows.mean()) / rows.std()


HEALTHY = {
    "exact": (lambda y: (y.log() - 1) / 2, lambda z: (z * 2 + 1).exp()),
    "arrays": (lambda y: (np.log(y) - 1) / 2, lambda z: np.exp(z * 2 + 1)),
    "rounded": (lambda y: y / 255 - 0.5, lambda z: ((z + 0.5) * 255).round()),
    "cut off": (lambda y: (y - 0.5) * 4, lambda z: (z / 4 + 0.5).clamp(0.4, 0.6)),
    "one way": (lambda y: y.sqrt(), lambda z: z.square()),
    "codes": (lambda y: (y * 7).round(), lambda z: z / 7),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_what_undoes_in_one_order_is_left_alone(case: str) -> None:
    """Exactly, but for rounding, or as far as it goes."""
    assert looks(Scale(*HEALTHY[case])) == ([], True)


REFUSED = {
    "itself": (_scale_itself, lambda z: z * 5 + 3),
    "itself later": (lambda y: y / 5, lambda z: z * z.std()),
    "no columns": (lambda y: y[:, :0], lambda z: z),
    "more columns": (lambda y: y.expand(-1, 3), lambda z: z),
    "an error": (lambda y: y, lambda z: z[99]),
    "texts": (lambda _: "seven", lambda z: z),
    "no numbers": (lambda y: y * torch.nan, lambda z: z),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_refuses_a_batch_says_nothing(case: str) -> None:
    """As what takes its scale from what it is given, or makes something else of it."""
    assert looks(Scale(*REFUSED[case])) == ([], False)


class Learned(nn.Module):
    """A module with both functions, which may lose what it likes."""

    def transform(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a code."""
        return numbers * 2

    def inverse_transform(self, code: torch.Tensor) -> torch.Tensor:
        """Return what is left of it."""
        return code * 3


def test_what_is_given_more_is_not_tried() -> None:
    """A column that is undone says nothing of all of them."""

    class Columns(Scale):
        """A scale of each column."""

        def inverse_transform(self, numbers: Any, column: int = 0) -> Any:
            """Return one of them."""
            return self.undo(numbers) + column

    assert looks(Columns(*BROKEN["variance"]))[1]

    class Prices(Columns):
        """Another one, whose method is given a column below."""

        def inv_transform(self, numbers: Any, column: int = 0) -> Any:
            """Return one of them."""
            return self.undo(numbers) + column

        inverse_transform = None  # type: ignore[assignment]

    prices = Prices(*BROKEN["variance"])
    assert prices.inv_transform(torch.ones(1), 2) == 9
    assert looks(prices) == ([], False)


def test_modules_are_not_tried() -> None:
    """What is learned need not be exact."""
    assert looks(Learned()) == ([], False)


def test_what_is_learned_need_not_be_exact() -> None:
    """As of functions that use a network."""
    there, back = nn.Linear(1, 1), nn.Linear(1, 1)
    assert looks(Scale(there, back)) == ([], False)


def test_the_first_losses_are_let_pass() -> None:
    """Until all is set up."""
    assert looks(Scale(*BROKEN["no mean"]), steps=3) == ([], False)


def test_functions_of_the_script_are_tried() -> None:
    """And those that need more than numbers are not."""

    def scale_price(price: torch.Tensor) -> torch.Tensor:
        """Return a price for a model."""
        return price / 100

    def unscale_price(scaled: torch.Tensor, places: int = 2) -> torch.Tensor:
        """Return a price."""
        return scaled * 10**places + 50

    def scale_rent(rent: torch.Tensor, city: str) -> torch.Tensor:
        """Return a rent for a model."""
        return rent / len(city)

    def unscale_rent(scaled: torch.Tensor) -> torch.Tensor:
        """Return a rent."""
        return scaled * 3

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Recorder("x") as recorder:
        for _ in range(6):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(16, 4)), torch.randn(16, 1)).backward()
            optimizer.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "inverse"]
    assert [probe.label for probe in found] == ["unscale_price of scale_price"]
    assert all((scale_price, unscale_price, scale_rent, unscale_rent))


def test_few_or_whole_numbers_are_no_scale() -> None:
    """Targets of one column of noughts and ones, beside inputs that vary, are not tried."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scale = Scale(*BROKEN["no mean"])
    with Recorder("x") as recorder:
        for _ in range(6):
            optimizer.zero_grad()
            bits = torch.randint(2, (16, 4)).float()
            F.mse_loss(model(bits), bits[:, :1]).backward()
            optimizer.step()
    assert isinstance(scale, Scale)
    assert "inverse" not in str(recorder.trace.conditions["looked"])


@pytest.mark.parametrize(
    ("name", "other", "undoes"),
    [
        ("inverse_transform", "transform", True),
        ("inverse", "__call__", True),
        ("denormalize", "normalize", True),
        ("denormalize_target", "normalize_target", True),
        ("target_denormalize", "target_normalize", True),
        ("unscale_y", "scale_y", True),
        ("unscale_y", "scale_x", False),
        ("decode", "encode", False),
        ("denormalize_image", "normalize_text", False),
        ("scale", "unscale", False),
        ("transform", "transform", False),
    ],
)
def test_names_say_what_undoes_what(name: str, other: str, undoes: bool) -> None:
    """Where the rest of both names is the same."""
    assert _undoes(name, other) is undoes
