"""Which lines have a function that is infinitely steep somewhere, once a gradient is infinite."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients.steep_places import _calls_of

ZEROS = torch.zeros(4, 2)


def steep(make_loss, sound: int = 0) -> list[Probe]:
    """Train on a loss of no input after so many steps of a usual one; return what is told."""
    net = nn.Linear(2, 2, bias=False)
    with Recorder("x", probe=False) as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(sound + 1):
            optimizer.zero_grad()
            make_loss(net(ZEROS if step >= sound else torch.ones(4, 2))).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "steep"]


def line_with(text: str) -> str:
    """Return `file:line` of a line of this file."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{1 + next(n for n, line in enumerate(lines) if text in line)}"


def root(out: torch.Tensor) -> torch.Tensor:
    """Return the mean root, and one of numpy's that has no graph."""
    two = float(np.sqrt(4.0))
    return out.square().sum(1).sqrt().mean() * two


def power(out: torch.Tensor) -> torch.Tensor:
    """Return the same as a power."""
    return (out.square().sum(1) ** 0.5).mean()


def masked(out: torch.Tensor) -> torch.Tensor:
    """Return logarithms of what is not zero, and forget that the others have a gradient."""
    return torch.where(out > 0, out.log(), torch.zeros(())).mean()


@pytest.mark.parametrize(
    ("make_loss", "label", "line"),
    [
        (root, "sqrt", "out.square().sum(1).sqrt().mean() *"),
        (power, "pow", "(out.square().sum(1) ** 0.5)"),
        (masked, "log", "torch.where(out > 0, out.log()"),
    ],
)
def test_the_line_is_named(make_loss, label: str, line: str) -> None:
    """Of the operation that the graph has, whatever else the file calls by that name."""
    (probe,) = steep(make_loss)
    assert (probe.label, probe.source, probe.measured) == (label, line_with(line), 1)


def test_a_sound_run_is_told_nothing() -> None:
    """Nor one whose loss has nothing steep, of norms, which are flat at zero."""
    assert steep(lambda out: root(out + 1)) == []
    assert steep(lambda out: out.norm(dim=1).mean()) == []
    assert steep(lambda out: (out.norm(dim=1) * float("inf")).mean(), sound=2) == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """As a cell of a notebook that is gone, or code for another Python."""
    broken = tmp_path / "broken.py"
    broken.write_text("x.sqrt( = 1\n")
    assert _calls_of("sqrt", str(broken)) == _calls_of("sqrt", "<cell>") == []
