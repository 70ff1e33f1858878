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
    each = lengths.flatten()
    rows = pack_padded_sequence(net.words(ids), each, batch_first=True, enforce_sorted=False)
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
    "mean": (lambda net, ids, n: net.words(ids).sum(1) / n.reshape(-1, 1), IDS),
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
    told: bool = False,
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
            lengths = LENGTHS[: len(rows)] if not upright else LENGTHS
            scores = model(rows, lengths if told else lengths[:, None])["scores"]
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
TOLD = {"kind": "padding cut told"}


def test_padding_that_is_read_to_the_end_is_told() -> None:
    """After many steps, where batches had different lengths."""
    (probe,) = probes(*BROKEN["mean"], **LATE)
    assert probe.measured > 0.3
    assert probes(*BROKEN["mean"], **LATE | TOLD) == []
    assert probe.step >= 100
    assert probes(*BROKEN["mean"], **LATE | {"steps": 90}) == []
    assert all(probe.measured < 1e-3 for probe in probes(*SOUND["mean"], **LATE))


def test_padding_that_comes_with_its_lengths_is_told_apart() -> None:
    """A model that is given them could have known."""
    (probe,) = probes(*BROKEN["mean"], **LATE | TOLD, told=True)
    assert probe.measured > 0.3
    assert probes(*BROKEN["mean"], **LATE, told=True) == []


def test_rows_of_one_or_two_lengths_say_no_more_late() -> None:
    """Each has its own amount of padding, as far as is known: the last batch may be smaller."""
    assert probes(*BROKEN["mean"], **LATE | {"more": (1,)}) == []
    assert probes(*BROKEN["mean"], **LATE | {"more": (1, 2)}) == []


def test_batches_of_many_sizes_are_not_rows_of_many_lengths() -> None:
    """Their rows may all be padded to one length."""
    sizes = {"more": (1,), "fewer": (0, 1, 2)}
    assert probes(*BROKEN["mean"], **LATE | sizes) == []
    assert probes(*BROKEN["mean"], **LATE | {"fewer": (0, 1, 2)})


class Graphs(nn.Module):
    """A reader of padded nodes, of what joins them, and of nothing else or their features."""

    def __init__(self, width: int, *, whole: bool) -> None:
        super().__init__()
        self.make, self.head, self.whole = nn.Linear(width, 6), nn.Linear(6, 2), whole

    def forward(self, nodes, joined, mask, causal) -> torch.Tensor:
        """Return scores by the mean of all places, or of those that the mask marks."""
        seen = (joined * causal) @ torch.tanh(self.make(nodes)) * mask[..., None]
        return self.head(seen.mean(1) if self.whole else seen.sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("width", [4, 9])
def test_padding_is_cut_off_both_axes_of_pairs(whole: bool, width: int) -> None:
    """Of what joins two nodes of each sample, or two places of any; and not off features."""
    model = Graphs(width, whole=whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for step in range(104):
            size = 9 + step % 3 if width == 4 else 9
            real = torch.arange(size) < LENGTHS[:, None]
            nodes = torch.randn(12, size, width) * real[..., None]
            joined = (torch.rand(12, size, size) < 0.5) * real[:, None] * real[..., None]
            optimizer.zero_grad()
            scores = model(nodes, joined.float(), real.float(), torch.ones(size, size).tril())
            nn.functional.cross_entropy(scores, LENGTHS % 2).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = {e.probe: e.measured for e in recorder.trace if isinstance(e, Probe)}
    late = {"padding cut told"} if width == 4 else set()  # of rows of one length it is not known
    assert {name for name in found if name.startswith("padding cut")} == {"padding cut"} | late
    moved = [found[name] for name in {"padding cut"} | late]
    assert all(each > 0.2 for each in moved) if whole else all(each < 1e-3 for each in moved)
