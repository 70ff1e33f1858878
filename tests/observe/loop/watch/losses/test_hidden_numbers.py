"""Losses over numbers of which some are hidden from the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses import hidden_numbers

WAYS = {
    "product": lambda made, x, keep: ((made - x).square() * keep).sum() / keep.sum(),
    "function": lambda made, x, keep: (F.l1_loss(made, x, reduction="none") * keep).mean(),
    "picked": lambda made, x, keep: F.mse_loss(made[keep > 0], x[keep > 0]),
    "indices": lambda made, x, keep: F.mse_loss(
        made[keep.nonzero(as_tuple=True)], x[keep.nonzero(as_tuple=True)]
    ),
    "masked": lambda made, x, keep: F.mse_loss(made * keep, x * keep),
}


def learn(
    way: str, *, counts: str = "shown", beside: bool = False, fixed: bool = False, **kinds: bool
) -> tuple[list[Probe], bool]:
    """Restore rows that come again and again; return the probes, and whether anything was seen."""
    torch.manual_seed(0)
    data, always = torch.randn(32, 6), (torch.rand(32, 6) < 0.7).float()
    model = nn.Linear(12 if beside else 6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(20):
            rows = torch.randperm(32)[:16]
            x = data[rows]
            keep = always[rows] if fixed else (torch.rand(16, 6) < 0.7).float()
            blank = torch.randn(16, 6) * (1 - keep) if kinds.get("drawn") else 0
            given = torch.cat([x * keep, keep], 1) if beside else x * keep + blank
            made = model(given + torch.randn(16, 6) if kinds.get("noisy") else given)
            counted = {"shown": keep, "hidden": 1 - keep, "all": torch.ones(16, 6)}[counts]
            loss = WAYS[way](made, x, counted)
            loss = loss + made.square().mean() if kinds.get("around") else loss
            loss = loss + WAYS[way](made, x, 1 - keep) if kinds.get("both") else loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "shown numbers"]
    return found, "shown numbers" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_loss_over_what_is_shown(way: str, beside: bool) -> None:
    """However it leaves out the rest, and whether the mask is given too."""
    (probe,), _ = learn(way, beside=beside)
    assert probe.measured == probe.reference == 5
    assert (probe.step or 0) > 20


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_over_what_is_hidden(way: str) -> None:
    """It is looked at, and sound."""
    assert learn(way, counts="hidden") == ([], True)


@pytest.mark.parametrize("kind", ["around", "both"])
def test_losses_that_count_what_is_hidden_too(kind: str) -> None:
    """In another term."""
    found, seen = learn("product", **{kind: True})
    assert (found, seen) == ([], True)


def test_scores_that_are_picked_of_a_large_table(monkeypatch) -> None:
    """As those of the words of a language: no mask is made of so many."""
    monkeypatch.setattr(hidden_numbers, "_LARGEST", 96)  # the numbers of a batch
    assert learn("indices")[1]
    monkeypatch.setattr(hidden_numbers, "_LARGEST", 95)
    table = torch.randn(16, 6, requires_grad=True)
    picked = table[torch.arange(16), torch.arange(16) % 6]
    assert list(hidden_numbers._masks(picked.grad_fn)) == []
    monkeypatch.undo()
    assert len(list(hidden_numbers._masks(picked.grad_fn))) == 1


def test_what_is_hidden_for_good() -> None:
    """Nobody knows more of these rows, perhaps."""
    (probe,), _ = learn("product", fixed=True)
    assert (probe.measured, probe.step) == (5.0, 0)


def test_other_losses_and_inputs() -> None:
    """All numbers count, or none is shown as it is."""
    assert learn("product", counts="all") == ([], False)
    assert learn("product", noisy=True) == ([], False)
    assert learn("product", drawn=True) == ([], False)
