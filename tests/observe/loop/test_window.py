"""When an optimizer's window is watched, and when its optimizer has stopped."""

import pytest
import torch
from torch import nn

from trainguard.observe.loop.window import Window, is_given, trains


def stepped(*steps: int) -> Window:
    """Make a window of an optimizer that stepped when so many steps had been made."""
    window = Window()
    for step in steps:
        window.close(step)
    return window


@pytest.mark.parametrize(
    ("window", "steps", "stopped"),
    [
        (stepped(*range(240)), 260, False),
        (stepped(*range(240)), 320, True),
        (stepped(0, 500, 1000), 2900, False),
        (stepped(0, 500, 1000), 3100, True),
        (stepped(300), 350, False),
    ],
    ids=["just now", "long ago", "a pause as before", "a longer pause", "its first step"],
)
def test_an_optimizer_has_stopped(window: Window, steps: int, stopped: bool) -> None:
    """One that pauses as it did before has not."""
    assert window.has_stopped(steps) is stopped


def build(*, own: bool, parts: list[bool]) -> nn.Module:
    """Build a module with parts, and set the flags of it and of each."""
    module = nn.Sequential(*(nn.Sequential(nn.Dropout()) for _ in parts))
    for part, awake in zip(module, parts, strict=True):
        part.train(awake)
    module.training = own
    return module


@pytest.mark.parametrize(
    ("module", "training"),
    [
        (build(own=True, parts=[True, True]), True),
        (build(own=True, parts=[False, False]), True),
        (build(own=False, parts=[False, False]), False),
        (build(own=False, parts=[True, True]), True),
        (build(own=False, parts=[True, False]), False),
        (build(own=False, parts=[True]), False),
        (build(own=False, parts=[]), False),
    ],
    ids=["awake", "parts asleep", "asleep", "by its flag", "a part awake", "one part", "no parts"],
)
def test_a_module_trains(module: nn.Module, training: bool) -> None:
    """It does where nothing but its own flag was set."""
    assert trains(module) is training


def test_what_is_no_leaf_has_no_gradient() -> None:
    """Torch would warn of the question; what keeps its gradient is asked."""
    leaf = torch.ones(2, requires_grad=True)
    made, kept = leaf * 2, leaf * 3
    kept.retain_grad()
    (made + kept).sum().backward()
    assert is_given(made) is None
    assert is_given(kept)
    assert is_given(leaf)
