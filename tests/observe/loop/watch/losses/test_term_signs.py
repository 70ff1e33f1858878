"""Entropies and divergences in losses, and their signs."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

KINDS = torch.arange(8) % 4


def looks(make: Callable[[torch.Tensor], torch.Tensor], climbs=False) -> list[tuple]:
    """Make a few steps with losses of an output (8, 4), and return what was seen of terms."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=climbs)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            make(model(torch.randn(8, 3))).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "term sign"]
    return [(probe.label, probe.measured, probe.reference) for probe in found]


def act(output: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the loss of a policy with a weight of its entropy."""
    choice = Categorical(logits=output)
    gain = (choice.log_prob(choice.sample()) * torch.randn(8)).mean()
    return -gain + weight * choice.entropy().mean()


def act_by_hand(output: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the same with an entropy by hand."""
    log, chosen = output.log_softmax(1), torch.randint(0, 4, (8, 1))
    Bernoulli(0.5).sample()
    entropy = -(output.softmax(1) * log).sum(1)
    return -(log.gather(1, chosen) * torch.randn(8, 1)).mean() + weight * entropy.mean()


def act_normally(output: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the same of a normal distribution along several axes."""
    choice = Normal(output[:, :2], output[:, 2:].exp())
    gain = choice.log_prob(choice.sample()).sum(1)
    return -(gain * torch.randn(8)).mean() + weight * choice.entropy().sum(1).mean()


@pytest.mark.parametrize("make", [act, act_by_hand, act_normally])
def test_entropies_beside_choices(make) -> None:
    """Added to the loss they are wrong."""
    assert looks(lambda output: make(output, 0.1)) == [("entropy", 3.0, 3.0)]
    assert looks(lambda output: make(output, -0.1)) == []
    assert looks(lambda output: make(output, 0.0)) == []
    assert looks(lambda output: make(output, 0.1), climbs=True) == []


def test_entropies_without_a_choice_may_be_small() -> None:
    """A model that adapts itself makes them so."""
    assert looks(lambda output: Categorical(logits=output).entropy().mean()) == []


def of_deviations(mu: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Return the divergence of normal distributions from the standard one."""
    return 0.5 * (deviation**2 + mu**2 - 2 * deviation.log() - 1).sum(1).mean()


DIVERGENCES = {
    "one plus": lambda mu, log: -0.5 * (1 + log - mu**2 - log.exp()).sum(1).mean(),
    "in terms": lambda mu, log: (mu.pow(2) * 0.5).mean() + (log.exp() * 0.5 - log / 2 - 0.5).mean(),
    "product": lambda mu, log: ((mu * mu + log.exp() - log - 1) / 2).sum(),
    "deviation": lambda mu, log: of_deviations(mu, log.exp()),
}


@pytest.mark.parametrize("written", DIVERGENCES)
@pytest.mark.parametrize("split", [lambda o: o.chunk(2, 1), lambda o: (o[:, :2], o[:, 2:])])
def test_divergences_in_many_words(written: str, split) -> None:
    """Taken off the loss they are wrong."""
    of = DIVERGENCES[written]

    def loss(output: torch.Tensor, weight: float) -> torch.Tensor:
        """Return a loss with a weight of the divergence."""
        return output.square().mean() + weight * of(*split(output))

    assert looks(lambda output: loss(output, -0.1)) == [("divergence", 3.0, 3.0)]
    assert looks(lambda output: loss(output, 0.1)) == []


def test_other_exponentials_are_no_divergences() -> None:
    """A likelihood of a normal distribution has its squares divided by the variance."""

    def loss(output: torch.Tensor) -> torch.Tensor:
        """Return the likelihood of numbers under means and logarithms of variances."""
        mu, log = output.chunk(2, 1)
        return ((torch.randn(8, 2) - mu) ** 2 * (-log).exp() + log).mean()

    assert looks(loss) == []
    assert looks(lambda output: (output.exp() - output).mean()) == []


def kept_near(written: str, weight: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the loss of a policy that is kept near to constant log-probabilities."""

    def make(output: torch.Tensor) -> torch.Tensor:
        """Return it for what a policy makes of 8 states."""
        new = output.log_softmax(1).gather(1, torch.randint(0, 4, (8, 1))).squeeze(1)
        mask, old = (torch.arange(8) > 1).float(), torch.randn(8) * 0.1 - 1.4
        names = {"torch": torch, "new": new, "old": old, "other": output.mean(1)}
        apart = eval(written, names)
        gain = (torch.exp(new - old.roll(1)) * torch.randn(8) * mask).sum() / mask.sum()
        return -gain + weight * (apart * mask).sum() / mask.sum()

    return make


APART = [
    "torch.exp(old - new) - (old - new) - 1",
    "(torch.exp(new - old) - 1) - (new - old)",
    "torch.clamp(torch.exp(old - new) - old + new - 1, -10, 10)",
    "0.5 * (new - old) ** 2",
]


@pytest.mark.parametrize("written", APART)
def test_divergences_from_a_reference(written: str) -> None:
    """Taken off a loss they are wrong, masked and clamped or not."""
    assert looks(kept_near(written, -0.1)) == [("reference", 3.0, 3.0)]
    assert looks(kept_near(written, 0.1)) == []


@pytest.mark.parametrize(
    "written",
    [
        "torch.exp(old - new) + (old - new)",
        "torch.exp(old - new) - 2 * (old - new)",
        "new - old",
        "new ** 2",
        "torch.exp(new - old) - new.detach()",
        "torch.exp(old - new) + other",
    ],
)
def test_other_functions_of_a_ratio_have_no_sign(written: str) -> None:
    """What is least elsewhere than where both are the same is no distance."""
    assert looks(kept_near(written, -0.1)) == []


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda o: -F.cross_entropy(o, KINDS), 1),
        (lambda o: -2 * F.mse_loss(o, torch.zeros(8, 4)) / 4, 1),
        (lambda o: -F.binary_cross_entropy_with_logits(o, torch.ones(8, 4)) + 1, 1),
        (lambda o: F.cross_entropy(o, KINDS), 0),
        (lambda o: o.square().mean() - F.cross_entropy(o, KINDS), 0),
        (lambda o: (F.cross_entropy(o, KINDS, reduction="none") * -torch.ones(8)).mean(), 0),
        (lambda o: -o.log_softmax(1).mean(), 0),
    ],
    ids=["cross", "square", "binary", "as it is", "beside another", "weighed", "by hand"],
)
def test_a_distance_that_is_all_of_a_loss(make, told: int) -> None:
    """Is to become small; where it is a part, or weighed by what has paid, nobody knows."""
    wrong = [("distance", 3.0, 3.0)]
    assert looks(make) == wrong * told
    assert looks(make, climbs=True) == []
