"""When an optimizer's window is watched, and when its optimizer has stopped."""

import pytest

from trainguard.observe.loop.window import Window


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
