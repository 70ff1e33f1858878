"""What is seen of streams: whether each pass draws the numbers of the one before."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Stream(IterableDataset[Any]):
    """Samples that are drawn: by one seed, by another in each pass, or none at all."""

    def __init__(self, how: str) -> None:
        self.how, self.passes = how, 0
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Draw some samples."""
        self.passes += 1
        rng = self.rng
        if self.how == "one seed":
            rng = np.random.default_rng(3)
        if self.how == "others":
            rng = np.random.default_rng(3 + self.passes)
        for number in range(24):
            drawn = rng.normal(size=4)
            drawn = np.full(4, number / 24) if self.how == "stored" else drawn
            yield torch.tensor(drawn, dtype=torch.float32)


def found(how: str, epochs: int = 4, *, learns: bool = True) -> list[Probe]:
    """Go through a stream again and again, and learn from it, or from something else."""
    torch.manual_seed(0)
    stream, model = Stream(how), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(epochs):
            if not learns:
                for batch in DataLoader([torch.randn(4) for _ in range(16)], batch_size=8):
                    model(batch).square().mean().backward()
                    optimizer.step()
            for batch in DataLoader(stream, batch_size=8):
                with torch.set_grad_enabled(learns):
                    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                if learns:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert not recorder.trace.conditions.get("faults")
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "seeded stream"]


def test_passes_that_draw_the_same_numbers_are_found() -> None:
    """By the line that makes their generator."""
    (probe,) = found("one seed")
    assert (probe.measured, probe.reference, probe.label) == (4.0, 4.0, "Stream\n3")
    assert "test_seeded_streams.py:" in probe.source


@pytest.mark.parametrize("how", ["others", "one generator", "stored"])
def test_other_passes_are_left_alone(how: str) -> None:
    """What comes in the order in which it is stored draws nothing."""
    assert found(how) == []


def test_few_passes_and_those_of_evaluations_say_nothing() -> None:
    """The same data are meant in an evaluation."""
    assert found("one seed", 2) == []
    assert found("one seed", learns=False) == []
