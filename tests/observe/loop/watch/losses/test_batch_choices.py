"""Losses that take the best of several alternatives, for a batch or for each sample."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions

Lose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ORDERS = [[0, 1], [1, 0]]
_STEPS = 33  # of which three are looked at


def probes(lose: Lose, rows: int = 16, kind: str = "loader") -> list[Probe]:
    """Train on pairs (N, 2, 3) in either order; return what is told."""
    torch.manual_seed(0)
    pairs = torch.rand(_STEPS * rows, 2, 3) + torch.tensor([0.0, 2.0])[:, None]
    turned = torch.rand(len(pairs)) < 0.5
    targets = torch.where(turned[:, None, None], pairs.flip(1), pairs)
    net = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = TensorDataset(pairs.sum(1), targets)
    with Recorder("x") as recorder:
        if kind == "loader":
            batches = iter(DataLoader(data, batch_size=rows, shuffle=True))
        for number in range(_STEPS):
            if kind == "loader":
                x, y = next(batches)
            elif kind == "places":
                places = torch.randint(len(pairs), (rows,))
                x, y = data[places]
            else:
                x, y = data[number * rows : (number + 1) * rows]
            optimizer.zero_grad()
            lose(net(x), y).backward()
            optimizer.step()
        measured_by = recorder.watcher(LossFunctions).measured_by
    assert not measured_by  # what is asked here is no evaluation
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "batch choice"]


def each_of(error: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Lose:
    """Return a loss: the least of an error over both orders of the targets."""
    return lambda out, y: torch.stack([error(out, y[:, order]) for order in ORDERS]).min()


def snr(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the ratio of signal and noise (N, 2)."""
    return 10 * torch.log10(y.pow(2).sum(-1) / ((y - out).pow(2).sum(-1) + 1e-6))


def pairwise(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the smaller one of the sums over pairs."""
    a, b = out.unbind(1)
    straight = F.l1_loss(a, y[:, 0]) + F.l1_loss(b, y[:, 1])
    return torch.minimum(straight, F.l1_loss(a, y[:, 1]) + F.l1_loss(b, y[:, 0])) / 2


def in_turn(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the smallest one, found in turn, beside another term."""
    best = None
    for order in permutations(range(2)):
        error = F.smooth_l1_loss(out, y[:, order])
        best = error if best is None else torch.minimum(error, best)
    assert best is not None
    return 2 * best + 0.01 * out.pow(2).mean()


@SHAPES
@pytest.mark.parametrize(
    "lose",
    [
        each_of(F.mse_loss),
        each_of(lambda out, y: (out - y).square().sum(-1).sum() / 100),
        each_of(lambda out, y: (y - out).abs().mean((1, 2)).mean(0)),
        each_of(lambda out, y: -snr(out, y).mean()),
        lambda out, y: -torch.stack([snr(out[:, o], y).mean() for o in ORDERS]).max(0).values,
        lambda out, y: torch.stack([F.mse_loss(o, y) for o in (out, out.flip(1))]).amin(),
        pairwise,
        in_turn,
    ],
    ids=["mse", "sum", "means", "ratio", "output", "turned", "pairs", "in turn"],
)
def test_orders_of_a_batch(lose: Lose) -> None:
    """About as many samples are in either order."""
    for kind, drawn in (("loader", 1), ("places", 1), ("slices", 0)):
        (probe,) = [each for each in probes(lose, kind=kind) if each.label == "order"]
        assert probe.reference == 3
        assert probe.step == drawn
        assert 0.15 <= probe.measured <= 0.9


@SHAPES
@pytest.mark.parametrize(
    "lose",
    [
        lambda out, y: torch.stack([(out[:, k] - y[:, 0]).abs().mean() for k in (0, 1)]).min(),
        lambda out, y: (out - y[:, :1]).norm(dim=-1).mean(0).min(),
        lambda out, y: ((out - y[:, :1]) ** 2).mean(dim=(0, 2)).min(dim=0).values,
    ],
    ids=["parts", "norm", "axis"],
)
def test_parts_for_a_batch(lose: Lose) -> None:
    """One part of an output has won for all of them."""
    (probe,) = probes(lose)
    assert (probe.label, probe.step) == ("part", 1)


def for_each(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Choose in a loop over samples."""
    pairs = zip(out, y, strict=True)
    least = [torch.minimum(F.mse_loss(a, b), F.mse_loss(a, b.flip(0))) for a, b in pairs]
    return torch.stack(least).mean()


@pytest.mark.parametrize(
    "lose",
    [
        lambda out, y: torch.minimum(*(snr(out, y[:, o]).neg().mean(1) for o in ORDERS)).mean(),
        for_each,
        lambda out, y: torch.minimum(F.mse_loss(out, y), torch.tensor(9.0)),
        lambda out, y: torch.minimum(F.mse_loss(out, y), F.mse_loss(out, y.flip(1)).detach()),
        lambda out, y: torch.minimum(F.mse_loss(out, y), F.l1_loss(out, y.flip(1))),
        lambda out, y: torch.stack([F.mse_loss(out, y[:, o]) for o in ORDERS]).max(),
        lambda out, y: F.mse_loss(out, y, reduction="none").mean((0, 2)).min(),
        lambda out, y: torch.stack([F.mse_loss(out[:, k], y[:, k]) for k in (0, 1)]).min(),
        lambda out, y: torch.minimum(F.mse_loss(out[:8], y[:8]), F.mse_loss(out[8:], y[8:])),
        lambda out, y: torch.minimum(F.mse_loss(out, y), F.mse_loss(out.flip(0), y)),
        lambda out, y: torch.minimum(F.mse_loss(out, y), F.mse_loss(out, -y)),
        lambda out, y: torch.minimum(out[:, 0].mean(), out[:, 1].mean()) + F.mse_loss(out, y),
    ],
    ids=[
        "samples",
        "loop",
        "bound",
        "constant",
        "functions",
        "worst",
        "columns",
        "tasks",
        "groups",
        "samples turned",
        "sign",
        "scores",
    ],
)
def test_other_choices(lose: Lose) -> None:
    """They are chosen for each sample, or are no alternatives."""
    assert probes(lose) == []


def test_few_samples() -> None:
    """One sample chooses for itself."""
    assert probes(each_of(F.mse_loss), rows=1) == []


def test_models() -> None:
    """The best of several models is none of several parts of one."""
    heads = [nn.Linear(3, 3), nn.Linear(3, 3)]

    def lose(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the smaller one of the errors of two heads, each on a part of its own."""
        made = [head(part) for head, part in zip(heads, out.unbind(1), strict=True)]
        return torch.minimum(*(F.mse_loss(each, y[:, 0]) for each in made))

    assert probes(lose) == []
