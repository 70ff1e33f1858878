"""Targets that name their sample, in a training and in its evaluations."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.rnn import pad_sequence

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.samples.shared_targets import SharedTargets

DRAWN = torch.Generator().manual_seed(0)
WORDS = [torch.randint(1, 50, (n,), generator=DRAWN).float() for n in (3, 5, 8, 4, 9, 6) * 20]


def told(
    train: Sequence[torch.Tensor],
    evaluations: Sequence[Sequence[torch.Tensor]],
    filler: float = 0.0,
    lose: Callable[..., torch.Tensor] = mse_loss,
) -> list[tuple[float, float]]:
    """Learn two epochs of targets, and evaluate after each; return what is told of both."""
    model = nn.Linear(3, 9)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def batches(rows: Sequence[torch.Tensor], size: int) -> list[torch.Tensor]:
        """Return the targets of batches, padded to the longest."""
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        return [pad_sequence([*p], batch_first=True, padding_value=filler) for p in parts]

    with Recorder("train") as recorder:
        for _ in range(2):
            for target in batches(train, 10):
                out = model(torch.randn(len(target), 3))[:, : target.shape[1]]
                lose(out, target).backward()
                optimizer.step()
                optimizer.zero_grad()
            for rows in evaluations:
                with torch.no_grad():
                    for target in batches(rows, 7):
                        lose(model(torch.randn(len(target), 3))[:, : target.shape[1]], target)
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "shared targets"]
    return [(probe.measured, probe.reference) for probe in found]


@pytest.mark.parametrize("filler", [0.0, -100.0])
def test_targets_of_the_training(filler: float) -> None:
    """However they are padded, and whatever the inputs are: these are noise here."""
    assert told(WORDS[:90], [WORDS[:30]], filler) == [(30, 30)]
    assert told(WORDS[:90], [WORDS[60:110]], filler) == [(30, 49)]  # but the last batch, of one
    assert told(WORDS[:90], [WORDS[90:]], filler) == []
    assert told(WORDS[:90], [WORDS[75:]], filler) == []


def test_what_is_evaluated_on_purpose() -> None:
    """All of the training; and a few are no more than chance."""
    assert told(WORDS[:90], [WORDS[:90]]) == []
    assert told(WORDS[:90], [WORDS[:30], WORDS[90:]]) == []


def test_targets_that_many_samples_have() -> None:
    """Classes, in several columns."""
    few = [torch.eye(5)[n % 5] for n in range(90)]
    assert told(few, [few[:30]]) == []


def test_targets_that_come_twice() -> None:
    """In the batches of a training, or in an evaluation: they do not name a sample."""
    twice = [row for row in WORDS[:45] for _ in range(2)]
    assert told(twice, [WORDS[:20]]) == []
    assert told(WORDS[:90], [[*WORDS[:7], *WORDS[:7], *WORDS[:7]]]) == []


def test_padding_that_is_known_late() -> None:
    """What was read before is let go, and read again in the next epoch."""
    first = [row[:5] if n == 0 else row[:6] for n, row in enumerate(w for w in WORDS if len(w) > 5)]
    rows = [*first[:10], *WORDS[:80]]
    assert told(rows, [rows[:10]], -100.0) == [(10, 10)]


def test_targets_of_foreign_kinds() -> None:
    """What has no rows of one length is let be."""
    rows = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged)
    with Recorder("train") as recorder:
        watcher = recorder.watcher(SharedTargets)
        call = LossCalls("mse_loss", "", False, "mean", (), ())
        for target in (rows, torch.eye(4).to_sparse(), torch.ones(4, 3, device="meta"), None):
            watcher._on_loss(call, torch.ones(4, 3), target, torch.zeros((), requires_grad=True))
    assert "faults" not in recorder.trace.conditions


def test_narrow_targets() -> None:
    """Pairs of numbers are no names."""
    pairs = [row[:2] for row in WORDS]
    assert told(pairs[:90], [pairs[:30]]) == []
