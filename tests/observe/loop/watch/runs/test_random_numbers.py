"""Seeds that are set late in a training, where few steps are watched, rewind what follows them."""

import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

POINTS = torch.linspace(-1, 1, 2400).reshape(240, 10)


def rewinds(train) -> list[tuple[float, float]]:
    """Return how many seeds rewound a training, and of how many."""
    with Recorder("train") as recorder:
        train()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "random rewinds"]
    return [(probe.measured, probe.reference) for probe in found]


def learn(model, optimizer, steps=60) -> None:
    """Learn to remove noise of the global generator."""
    for _ in range(steps):
        clean = POINTS[torch.randint(0, 240, (8,))]
        loss = (model(clean + 0.1 * torch.randn_like(clean)) - clean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def make() -> tuple:
    """Return a model and its optimizer."""
    model = nn.Linear(10, 10)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def attack(model) -> None:
    """Ask the model about noise that it is most sensitive to, from a seed."""
    torch.manual_seed(3)
    for _ in range(3):
        noise = torch.randn(8, 10, requires_grad=True)
        (model(POINTS[:8] + noise) - POINTS[:8]).square().mean().backward()


def test_a_preview_rewinds_long_epochs() -> None:
    """Each epoch but the first is that of another; no step of them but two is watched."""

    def train() -> None:
        """Train."""
        model, optimizer = make()
        for _ in range(6):
            learn(model, optimizer)
            with torch.no_grad():
                model(torch.randn(4, 10, generator=torch.manual_seed(0)))

    assert rewinds(train) == [(4, 5)]


def test_a_generator_that_is_put_back_goes_on() -> None:
    """An evaluation with gradients and a seed of its own changes nothing for the training."""

    def train() -> None:
        """Train."""
        model, optimizer = make()
        for _ in range(6):
            learn(model, optimizer)
            with torch.random.fork_rng():
                attack(model)

    assert rewinds(train) == []


def test_seeds_of_epochs_differ() -> None:
    """A line that gives another number each time rewinds nothing."""

    def train() -> None:
        """Train."""
        model, optimizer = make()
        for epoch in range(6):
            torch.manual_seed(epoch % 3)
            learn(model, optimizer)

    assert rewinds(train) == []


def test_another_run_may_be_compared() -> None:
    """A training that begins again with another optimizer draws what the one before drew."""

    def train() -> None:
        """Train."""
        for _ in range(20):
            torch.manual_seed(0)
            learn(*make(), steps=8)

    assert rewinds(train) == []


def test_evaluations_alone_may_draw_again() -> None:
    """What nothing but evaluations draws is not drawn by steps."""

    def train() -> None:
        """Train."""
        model, optimizer = make()
        for step in range(300):
            loss = model(POINTS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 49:
                attack(model)

    assert rewinds(train) == []
