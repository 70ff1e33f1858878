"""In which module a leak begins, on real models."""

import pytest
from torch import Tensor, nn

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.observer import observe


def passes(model: tg.Model, probe: str) -> list[Pass]:
    """Observe a model with one probe at its largest sizes."""
    return list(observe(model, "cpu", "float32", Settings(profile="quick")).trace(probe))


class Nested(nn.Module):
    """A layer, then one that mixes, then another layer."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.before = nn.Linear(3, 5)
        self.inside = nn.Sequential(nn.Tanh(), nn.Softmax(axis))
        self.after = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last."""
        return self.after(self.inside(self.before(x)))


@pytest.mark.parametrize(("probe", "axis"), [("samples", 0), ("future", 1)])
def test_the_module_in_which_it_begins(probe: str, axis: int) -> None:
    """It is the innermost one whose own inputs are still as they were."""
    model = tg.Model(
        Nested, arguments={"axis": axis}, x=tg.real("B T 3", -1, 1), sizes={"T": 6}, causal="T"
    )
    (seen,) = passes(model, probe)
    assert seen.detail == "`inside.1` (Softmax)"
    assert seen.at.endswith("where `x` is edited")
    assert seen.source == ""  # torch's own code, and not the user's


def test_the_line_at_which_it_begins() -> None:
    """Where the module is the user's own, its forward is pointed at."""

    class Mixer(nn.Module):
        """A mean over the batch."""

        def forward(self, x: Tensor) -> Tensor:
            """Return what is left."""
            return x - x.mean(0)

    model = tg.Model(
        lambda: nn.Sequential(nn.Linear(3, 3), Mixer()),
        inputs={"input": tg.real("B 3", -1, 1)},
        name="net",
    )
    (seen,) = passes(model, "samples")[:1]
    assert seen.detail == "`1` (Mixer)"
    assert seen.source == f"{__file__}:{Mixer.forward.__code__.co_firstlineno}"
