"""Outputs that depend on how much padding a sample has."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

LENGTHS = torch.tensor([9, 3, 4, 3, 5, 2, 4, 3, 6, 5, 3, 4])
REAL = torch.arange(9) < LENGTHS[:, None]


class Net(nn.Module):
    """A reader of padded tokens, or of what they stand for, and a head."""

    def __init__(self, read, upright: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, padding_idx=0)
        self.gru, self.head = nn.GRU(6, 6, batch_first=not upright), nn.Linear(6, 2)
        self.read = read

    def forward(self, given: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return scores in a dict."""
        return {"scores": self.head(self.read(self, given, lengths))}


def packed(net: Net, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the last states of packed sequences."""
    rows = pack_padded_sequence(net.words(ids), lengths, batch_first=True, enforce_sorted=False)
    return net.gru(rows)[1][0]


IDS = torch.randint(2, 20, (12, 9), generator=torch.Generator().manual_seed(0)) * REAL
FEATURES = torch.randn(12, 9, 6, generator=torch.Generator().manual_seed(0)) * REAL[..., None]
BROKEN = {
    "state": (lambda net, ids, _: net.gru(net.words(ids))[1][0], IDS),
    "mean": (lambda net, ids, _: net.words(ids).mean(1), IDS),
    "features": (lambda net, x, _: net.gru(x)[0][:, -1], FEATURES),
}
SOUND = {
    "packed": (packed, IDS),
    "mean": (lambda net, ids, n: net.words(ids).sum(1) / n[:, None], IDS),
    "left": (lambda net, ids, _: net.gru(net.words(ids))[1][0], IDS.flip(1)),
    "mask": (lambda net, ids, _: net.gru(net.words(ids))[1][0], REAL.long()),
    "whole": (lambda net, ids, _: net.gru(net.words(ids))[1][0], IDS.clamp_min(1)[:, :2]),
}


def probes(
    read,
    given: torch.Tensor,
    *,
    upright: bool = False,
    steps: int = 3,
    more: tuple[int, ...] = (0,),
    fewer: tuple[int, ...] = (0,),
    kind: str = "padding cut",
) -> list[Probe]:
    """Train, with so much more padding and fewer rows in turns; return the probes of a kind."""
    torch.manual_seed(0)
    model, classes = Net(read, upright), LENGTHS % 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            sides = (0, 0) * (given.dim() - 2) + (0, more[step % len(more)])
            rows = nn.functional.pad(given, sides)
            count = len(LENGTHS) - fewer[step % len(fewer)]
            rows = rows if upright else rows[:count]
            scores = model(rows, LENGTHS[: len(rows)] if not upright else LENGTHS)["scores"]
            nn.functional.cross_entropy(scores, classes[: len(scores)]).backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@pytest.mark.parametrize("name", BROKEN)
def test_padding_that_is_read_is_told(name: str) -> None:
    """The change is measured in deviations of the outputs, and how much was cut is told."""
    (probe,) = probes(*BROKEN[name])
    assert probe.measured > 0.3
    assert (probe.reference, probe.label, probe.step) == (6, "Net", 1)


def test_padding_is_found_where_time_comes_first() -> None:
    """A layer that takes time first is given an input that does."""
    (probe,) = probes(lambda net, x, _: net.gru(x)[1][0], FEATURES.transpose(0, 1), upright=True)
    assert probe.measured > 0.3


@pytest.mark.parametrize("name", SOUND)
def test_padding_that_is_not_read_is_silent(name: str) -> None:
    """So are padding at the beginning, masks, and rows of one length."""
    assert all(probe.measured < 1e-3 for probe in probes(*SOUND[name]))


LATE = {"steps": 104, "more": (0, 1, 2), "kind": "padding cut late"}


def test_padding_that_is_read_to_the_end_is_told() -> None:
    """After many steps, where batches had different lengths."""
    (probe,) = probes(*BROKEN["mean"], **LATE)
    assert probe.measured > 0.3
    assert probe.step >= 100
    assert probes(*BROKEN["mean"], **LATE | {"steps": 90}) == []
    assert all(probe.measured < 1e-3 for probe in probes(*SOUND["mean"], **LATE))


def test_rows_of_one_or_two_lengths_say_no_more_late() -> None:
    """Each has its own amount of padding, as far as is known: the last batch may be smaller."""
    assert probes(*BROKEN["mean"], **LATE | {"more": (1,)}) == []
    assert probes(*BROKEN["mean"], **LATE | {"more": (1, 2)}) == []


def test_batches_of_many_sizes_are_not_rows_of_many_lengths() -> None:
    """Their rows may all be padded to one length."""
    sizes = {"more": (1,), "fewer": (0, 1, 2)}
    assert probes(*BROKEN["mean"], **LATE | sizes) == []
    assert probes(*BROKEN["mean"], **LATE | {"fewer": (0, 1, 2)})
