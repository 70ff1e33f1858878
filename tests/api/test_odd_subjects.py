"""Subjects that were once passed in silence, or broke trainguard itself, each at its smallest."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler, TensorDataset

import trainguard as tg


def rate(step: int) -> float:
    """Return a warm-up and a decay, with one step at ten times both of its neighbours."""
    return 1.0 if step == 100 else (step + 1) / 1000 if step < 100 else step**-0.5


class Draws(Sampler):
    """A sampler that draws with replacement, and does not say so."""

    def __iter__(self):
        """Yield as many places as there are."""
        return iter(torch.randint(0, 120, (120,)).tolist())

    def __len__(self) -> int:
        """Return how many there are."""
        return 120


class Named(nn.Module):
    """A model whose argument has the name of one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 as many call it
        """Return the scores."""
        return self.net(input)


def test_a_rate_that_leaps_for_one_step() -> None:
    """The step after the warm-up is held against its neighbours too."""
    subject = tg.Schedule(
        lambda optimizer: LambdaLR(optimizer, rate), base_rate=1, peak=1, warmup=100, total=1000
    )
    with pytest.raises(tg.Broken, match="rate_changes_smoothly"):
        tg.check(subject)


def test_a_sampler_that_draws_with_replacement() -> None:
    """Some samples come twice, and others never."""
    data = TensorDataset(torch.arange(120.0)[:, None])
    subject = tg.Loader(
        lambda: DataLoader(data, 8, sampler=Draws()), splits={"train": {"once": True}}
    )
    with pytest.raises(tg.Broken, match="epoch_visits_each_sample_once"):
        tg.check(subject)


def test_an_argument_called_input() -> None:
    """It is handed over by its name, and collides with none of ours."""
    tg.check(
        tg.Model(
            Named,
            input=tg.real("B 4", -2, 2),
            target=tg.integer("B", 0, 2),
            loss=F.cross_entropy,
        )
    )


def test_a_loss_that_makes_its_targets_real() -> None:
    """Values of two dtypes are compared as numbers."""
    tg.check(
        tg.Loss(
            lambda scores, labels: F.binary_cross_entropy_with_logits(scores, labels.float()),
            scores=tg.real("B N", -8, 8),
            labels=tg.integer("B N", 0, 1),
        )
    )


def test_what_is_not_declared() -> None:
    """A function, or a model, is no subject: one sentence, and the way out."""
    with pytest.raises(tg.DeclarationError, match="which is not declared. Give it what tg.Loss"):
        tg.check(F.mse_loss)
