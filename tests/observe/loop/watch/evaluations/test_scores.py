"""What is right in an evaluation of several batches."""

import torch
from torch import nn

from trainguard.events.fit import Score
from trainguard.observe.loop.recorder import Recorder


def scored(batches: int, speak: bool) -> Score:
    """Train a step, evaluate so many batches, and return the last score."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(torch.randn(8, 3)), torch.randint(2, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for batch in range(batches):
                    x = torch.randn(8, 3)
                    wanted = net(x).argmax(1)
                    wanted[: batch + 1] = 1 - wanted[: batch + 1]  # of each batch fewer are right
                    nn.functional.cross_entropy(net(x), wanted)
            if speak:
                print("val_acc 0.5")
    return [e for e in recorder.trace if isinstance(e, Score) and e.evaluation][-1]


def test_the_last_batch_is_told() -> None:
    """By itself and among all, whenever an accuracy was said first."""
    for speak in (False, True):
        ways = {name: (right, of) for name, right, of, _ in scored(4, speak).ways}
        assert ways["right"] == (7 + 6 + 5 + 4, 32)
        assert ways["final"] == (4, 8)


def test_two_batches_have_no_last_one() -> None:
    """Of few batches the last one says as much."""
    assert "final" not in {name for name, *_ in scored(2, speak=True).ways}
