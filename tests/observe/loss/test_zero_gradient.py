"""The probe of plateaus: no gradient although the loss could fall."""

import pytest
import torch

import trainguard as tg
from trainguard.observe.loss.search import Key
from trainguard.observe.loss.zero_gradient import plateau

X = {"x": tg.real("B", -4, 4)}
XY = {"x": tg.real("B", -4, 4), "y": tg.real("B", -4, 4)}
WHOLE = Key("plateau", label="whole")


def element(name: str = "x") -> Key:
    """Return the key of plateaus of one input's elements."""
    return Key("plateau", name, "input")


def worst(found: dict, key: Key) -> float:
    """Return by how much the loss can still fall at the worst plateau."""
    return float(found[key].measured.max())


ALIVE = {
    "square": lambda x: x.square().sum(),
    "absolute": lambda x: x.abs().sum(),
    "hinge": lambda x: (1 - x).clamp_min(0).sum(),
    "sigmoid": lambda x: x.sigmoid().sum(),
    "huber": lambda x: torch.nn.functional.huber_loss(x, torch.zeros_like(x)),
    "saturated at its minimum": lambda x: (x - 3.0).clamp_min(0).sum(),
    "tiny and not zero": lambda x: (1e-200 * x).sum(),
    "constant": lambda x: (0 * x).sum(),
}


@pytest.mark.parametrize("name", ALIVE)
def test_a_living_loss(name: str, made, measured) -> None:
    """Where there is a gradient, or nothing to gain, nothing is measured."""
    found = measured(plateau, made(ALIVE[name], **X), 256)
    assert worst(found, WHOLE) <= 0.0
    assert worst(found, element()) <= 0.0


DEAD = {
    "a clamp of the loss": lambda x: x.square().sum().clamp(max=2.0),
    "a clamp of the mean": lambda x: x.square().mean().clamp(max=2.0),
    "a clamp of an input": lambda x: (x.clamp(-1, 1) - 0.5).square().sum(),
    "a rounding": lambda x: (
        (x - x.detach() + x.detach().round()).square().sum() * 0 + (x.round() - 0.5).square().sum()
    ),
}


@pytest.mark.parametrize("name", DEAD)
def test_a_dead_loss(name: str, made, measured) -> None:
    """Behind a clamp every gradient is zero, and what can be gained is measured."""
    found = measured(plateau, made(DEAD[name], **X), 256)
    assert worst(found, WHOLE) > 0.05
    assert int(found[WHOLE].bad.sum()) > 10


def test_one_dead_element(made, measured) -> None:
    """A clamp of one input of two is found at its element, in a point beyond the clamp."""
    evaluator = made(lambda x, y: (x.clamp(-1, 1) + y).square().sum(), {"B": 1}, **XY)
    found = measured(plateau, evaluator, 256)
    assert worst(found, element("x")) > 0.1
    assert worst(found, element("y")) <= 0.0
    row = int(found[element("x")].measured.argmax())
    assert int(found[element("x")].coordinate[row]) == 0


def test_a_gradient_that_is_zero_by_chance(made, measured) -> None:
    """A gradient that another input switches on again is not dead."""
    evaluator = made(lambda x, y: (x * y.clamp_min(0)).sum().exp(), {"B": 1}, **XY)
    assert worst(measured(plateau, evaluator, 256), element("x")) <= 0.0


def test_a_gradient_that_other_inputs_switch_on(made, measured) -> None:
    """An element that follows where it is above another input is alive below it too."""
    evaluator = made(lambda x, y: 0.1 * y.sum() - (x - y).clamp_min(0).sum(), {"B": 1}, **XY)
    assert worst(measured(plateau, evaluator, 512), element("x")) <= 0.0


def test_a_single_point_is_no_plateau(made, measured) -> None:
    """A saddle has no gradient either, and all around it there is one."""
    saddle = {"x": torch.zeros(1, 1, dtype=torch.float64)}
    found = measured(plateau, made(lambda x: (x**3).sum(), {"B": 1}, **X), saddle)
    assert bool(found[WHOLE].bad[0])
    assert worst(found, WHOLE) <= 0.0


def test_an_attention_to_one_coincidence_is_alive(made, measured) -> None:
    """A narrow bump that only close inputs see is alive where they are close."""
    evaluator = made(
        lambda x, y: -(-((x - y) / 0.01).square()).exp().clamp_min(1e-9).sum(), {"B": 1}, **XY
    )
    assert worst(measured(plateau, evaluator, 512), element("x")) <= 0.0


def test_a_declared_plateau(made, measured) -> None:
    """Outside `alive` no gradient is promised; inside it a dead one is found all the same."""
    inside = {"x": tg.real("B", -4, 4, alive=(-1, 1))}
    clamped = lambda x: (x.clamp(-1, 1) - 0.5).square().sum()  # noqa: E731
    dead = lambda x: (x.clamp(-0.2, 0.2) - 0.5).square().sum()  # noqa: E731
    assert worst(measured(plateau, made(clamped, {"B": 1}, **inside), 256), WHOLE) <= 0.0
    assert worst(measured(plateau, made(dead, {"B": 1}, **inside), 256), WHOLE) > 0.05


def test_an_input_that_is_never_reached(made, measured) -> None:
    """No gradient at any point marks an input as unreached; a rare zero does not."""
    found = measured(plateau, made(lambda x, y: (x * y.detach()).sum(), **XY), 128)
    assert bool(found[Key("unreached", "y")].bad.all())
    assert worst(found, element("y")) <= 0.0
    assert not bool(found[Key("unreached", "x")].bad.all())


def test_infinite_losses_are_no_gain(made, measured) -> None:
    """Neither an infinite loss nor an infinite depth counts as a fall."""
    infinite = lambda x, y: (torch.where(x > 1, torch.inf, -x.clamp(max=1)) + y).sum()  # noqa: E731
    found = measured(plateau, made(infinite, {"B": 1}, **XY), 128)
    assert worst(found, WHOLE) <= 0.0
    assert worst(found, element("x")) <= 0.0
