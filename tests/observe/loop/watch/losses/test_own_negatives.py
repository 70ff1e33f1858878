"""Contrastive losses by hand, and whether each sample is among its own negatives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.own_negatives import has_own

COUNT = 12
HALF = COUNT // 2
EYE = torch.eye(COUNT, dtype=torch.bool)
PARTNER = torch.arange(COUNT).roll(HALF)
PAIRS = EYE.roll(HALF, 0)
ROWS = torch.arange(COUNT)


def probes(loss_of, *, unit: bool = True, count: int = COUNT) -> list[Probe]:
    """Record a training whose loss is one of scores of codes with each other."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            codes = net(torch.randn(count, 6))
            codes = F.normalize(codes, dim=1) if unit else codes
            loss = loss_of(codes @ codes.T / 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "self"]


def masked(scores):
    """Leave out the diagonal."""
    return scores.masked_fill(EYE, float("-inf"))


def supervised(scores, kept=None, pairs=PAIRS):
    """Return the loss of Khosla et al., whose sums have what `kept` leaves."""
    scores = scores - scores.max(1, keepdim=True).values.detach()
    summed = scores.exp() if kept is None else scores.exp() * kept
    logs = scores - summed.sum(1, keepdim=True).log()
    return -((pairs * logs).sum(1) / pairs.sum(1)).mean()


KEPT = {
    "two diagonals": lambda s: (
        s.logsumexp(1) - torch.cat([s.diagonal(HALF), s.diagonal(-HALF)])
    ).mean(),
    "diag": lambda s: (
        s.logsumexp(0) - torch.cat([torch.diag(s, HALF), torch.diag(s, -HALF)])
    ).mean(),
    "indices": lambda s: (s.logsumexp(1) - s[ROWS, PARTNER]).mean(),
    "gather": lambda s: -F.log_softmax(s, 1).gather(1, PARTNER[:, None]).mean(),
    "mask": lambda s: -(F.log_softmax(s, 1) * PAIRS).sum(1).mean(),
    "masked select": lambda s: -F.log_softmax(s, 1)[PAIRS].mean(),
    "exponential": lambda s: -(s.exp()[PAIRS] / s.exp().sum(1)).log().mean(),
    "one exponential": lambda s: -((e := s.exp()).masked_select(PAIRS) / e.sum(1)).log().mean(),
}
SOUND = {
    "masked": lambda s: (masked(s).logsumexp(1) - s[ROWS, PARTNER]).mean(),
    "masked by a number": lambda s: (
        s.masked_fill(EYE, -1e9).logsumexp(1) - s[ROWS, PARTNER]
    ).mean(),
    "left out of a sum": lambda s: supervised(s, kept=~EYE),
    "taken off a sum": lambda s: -((e := s.exp())[PAIRS] / (e.sum(1) - e.diagonal())).log().mean(),
    "a constant off a sum": lambda s: -((e := s.exp())[PAIRS] / (e.sum(1) - 22026.46)).log().mean(),
    "the diagonal is right": lambda s: (s.logsumexp(1) - s.diagonal()).mean(),
    "the diagonal is right too": lambda s: -(F.log_softmax(s, 1) * (PAIRS | EYE)).sum(1).mean(),
    "by index": lambda s: (s.logsumexp(1) - s[ROWS, ROWS]).mean(),
    "by gather": lambda s: -F.log_softmax(s, 1).gather(1, ROWS[:, None]).mean(),
    "by mask": lambda s: -F.log_softmax(s, 1)[PAIRS | EYE].mean(),
    "by masked select": lambda s: -F.log_softmax(s, 1).masked_select(PAIRS | EYE).mean(),
    "spread alone": lambda s: s.logsumexp(1).mean(),
    "of parts": lambda s: (s[:HALF, HALF:].logsumexp(1) - s[:HALF, HALF:].diagonal()).mean(),
    "after a term": lambda s: ((s + torch.arange(COUNT)).logsumexp(1) - s[ROWS, PARTNER]).mean(),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_diagonal_that_is_kept(name: str) -> None:
    """It is told however the softmax is written, once for each loss that was looked at."""
    (probe,) = probes(KEPT[name])
    assert probe.measured == probe.reference >= 3
    assert probe.source.rpartition(":")[0] == __file__


def test_a_supervised_loss_with_all_in_its_sums() -> None:
    """The mask of what is left out of the sums is missing."""
    assert probes(supervised)
    assert probes(lambda s: supervised(s, pairs=PAIRS | EYE)) == []


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound(name: str) -> None:
    """Diagonals that are left out, or right, and tables that are no softmax over pairs."""
    assert probes(SOUND[name]) == []


def test_which_tables_are_of_samples_with_themselves() -> None:
    """The diagonal is one number, the highest; and what is above it is below it, too."""
    codes = F.normalize(torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    table = codes @ codes.T
    assert has_own(table)
    assert has_own(table - table.logsumexp(1, keepdim=True))
    assert not has_own(table.masked_fill(EYE, float("-inf")))
    assert not has_own(table.masked_fill(EYE, 0.0))
    assert not has_own(table - table.tril(-1) / 2)
    assert not has_own(torch.zeros(COUNT, COUNT))


def test_vectors_of_any_length_and_small_batches_are_left_alone() -> None:
    """Their own score may be right, or the highest by chance."""
    loss = KEPT["indices"]
    assert probes(loss, unit=False) == []
    assert probes(lambda s: (s.logsumexp(1) - s[range(4), [1, 0, 3, 2]]).mean(), count=4) == []


def test_one_table_that_is_sound_clears_the_others() -> None:
    """What is so in all losses is no accident, as a first potential of a transport would be."""
    calls = iter(range(9))
    assert probes(lambda s: KEPT["indices"](s if next(calls) else s + torch.arange(COUNT))) == []
