"""What the probes of the state dict and of copies find in real models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)


class Net(nn.Module):
    """Two tied layers and a norm, of which subclasses spoil something."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of both layers."""
        return self.after(self.tied(self.norm(self.linear(x))))

    def after(self, y: Tensor) -> Tensor:
        """Return the output as it is."""
        return y


def passes(model: Any, probe: str) -> dict[str, list[Pass]]:
    """Observe a model, and return by quantity what is not as it should be."""
    declared = model if isinstance(model, tg.Model) else tg.Model(model, x=X)
    found: dict[str, list[Pass]] = {}
    for seen in observe(declared, "cpu", "float32", Settings()).trace(probe):
        if seen.measured:
            found.setdefault(seen.quantity, []).append(seen)
    return found


class Fourier(Net):
    """Random numbers that are no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = torch.randn(4)

    def after(self, y: Tensor) -> Tensor:
        """Multiply with them."""
        return y * self.frequencies


class Forgets(Net):
    """A running mean that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def after(self, y: Tensor) -> Tensor:
        """Subtract the running mean."""
        if self.training:
            self.mean = self.mean.lerp(y.detach().mean(0), 0.1)
        return y - self.mean


class Grows(Net):
    """A buffer that comes with the first call."""

    def after(self, y: Tensor) -> Tensor:
        """Register it."""
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(4))
        return y * self.table


class Halves(Net):
    """A state dict that rounds."""

    def state_dict(self, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Return the state in half the space."""
        state = super().state_dict(*args, **keywords)
        return {n: v.half() if v.is_floating_point() else v for n, v in state.items()}


class Skips(Net):
    """A load that leaves something as it is."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load all but the statistics."""
        kept = {n: v for n, v in state_dict.items() if "running" not in n}
        return super().load_state_dict(kept, strict=False, assign=assign)


class Unties(Net):
    """A load that replaces a parameter."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load, and make the head's weight anew."""
        done = super().load_state_dict(state_dict, strict=strict, assign=assign)
        self.tied.weight = nn.Parameter(state_dict["tied.weight"].clone())
        return done


@pytest.mark.parametrize(
    ("kind", "quantity", "place", "words"),
    [
        (Fourier, "restored", "output", "frequencies"),
        (Forgets, "restored", "output", "mean"),
        (Grows, "unloadable", "", "Unexpected key"),
        (Halves, "state dtype", "linear.weight", "float16 instead of float32"),
        (Skips, "state value", "norm.running_mean", ""),
        (Unties, "untied", "linear.weight, tied.weight", ""),
    ],
)
def test_a_state_that_is_lost(kind: type[nn.Module], quantity: str, place: str, words: str) -> None:
    """Each way to lose something has its own event, with what was lost."""
    seen = passes(kind, "state")[quantity][0]
    assert seen.place == place
    assert words in seen.detail


class Hidden(Net):
    """A state that is carried from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Any = 0.0

    def after(self, y: Tensor) -> Tensor:
        """Add the last output."""
        self.hidden = (0.5 * self.hidden + y).detach()
        return y + self.hidden


class Table(Net):
    """A table that is not saved since it is always the same, and one that is made when needed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sines", torch.arange(4).sin(), persistent=False)
        self.cosines: Any = None

    def after(self, y: Tensor) -> Tensor:
        """Multiply with both."""
        if self.cosines is None:
            self.cosines = torch.arange(4).cos()
        return y * self.sines * self.cosines


class Draws(Net):
    """Numbers that are drawn in each call."""

    def after(self, y: Tensor) -> Tensor:
        """Add them."""
        return y + torch.randn(4)


@pytest.mark.parametrize("kind", [Net, Table, Hidden, Draws])
def test_a_state_that_is_kept(kind: type[nn.Module]) -> None:
    """What is the same in every model need not be saved, nor a state of the sequence."""
    assert passes(kind, "state") == {}
    assert passes(kind, "copies") == {}


def test_a_module_that_is_given() -> None:
    """It is loaded into a copy with other values, and stays as it was itself."""
    torch.manual_seed(0)
    for kind, expected in ((Net, {}), (Skips, {"state value", "restored"})):
        module = kind()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        assert set(passes(tg.Model(module, x=X), "state")) == set(expected)
        assert all(torch.equal(before[n], v) for n, v in module.state_dict().items())


class Lambda(Net):
    """A function that has closed over the module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.call = lambda y: 2 * self.head(y)

    def after(self, y: Tensor) -> Tensor:
        """Call it."""
        return self.call(y)


class Method(Lambda):
    """A method that is kept, which is copied along."""

    def __init__(self) -> None:
        super().__init__()
        self.call = self.head.forward


class Shares(Net):
    """A copy that is made of the same tensors."""

    def __deepcopy__(self, memo: Any) -> "Shares":
        """Return a new module with the old parameters."""
        twin = Shares()
        twin.linear.weight = self.linear.weight
        twin.tied.weight = nn.Parameter(self.linear.weight.detach().clone())
        return twin


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Lambda, {"follows"}),
        (Method, set()),
        (Shares, {"shared", "copy untied", "copied", "follows"}),
    ],
)
def test_copies(kind: type[nn.Module], expected: set[str]) -> None:
    """A copy that uses anything of its original is found, whatever the way."""
    assert set(passes(kind, "copies")) == expected


def test_a_model_that_refuses_to_be_copied_is_not_judged() -> None:
    """Nobody can overlook an exception."""

    class Proud(Net):
        """A model that is one of its kind."""

        def __deepcopy__(self, memo: Any) -> "Proud":
            """Refuse."""
            raise TypeError("there is only one")

    with pytest.raises(Unjudged, match="there is only one"):
        passes(Proud, "copies")
    assert passes(Proud, "state") == {}
