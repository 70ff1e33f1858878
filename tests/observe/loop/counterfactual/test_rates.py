"""Other rates: what the same steps would have learned at these."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.rates import has_halved, mean_end
from trainguard.observe.loop.counterfactual.replay import MultipliedRates
from trainguard.observe.loop.recorder import Recorder

pytestmark = pytest.mark.usefixtures("first_steps")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask nothing else."""
    monkeypatch.setattr(asking, "_questions", lambda _: [])


def train(
    rate,
    *,
    steps=64,
    loss_of=F.mse_loss,
    targets_of=None,
    schedule=None,
    net=None,
    epsilon=None,
    looks=lambda net, batch: None,
):
    """Make steps at a rate; return the losses."""
    torch.manual_seed(0)
    points = torch.randn(8, 16, 6)
    net = net or nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = (
        torch.optim.SGD(net.parameters(), lr=rate)
        if epsilon is None
        else torch.optim.Adam(net.parameters(), lr=rate, eps=epsilon)
    )
    scheduler = schedule(optimizer) if schedule else None
    targets_of = targets_of or (lambda batch, _: batch.sum(1, keepdim=True).sin())
    losses = []
    for step in range(steps):
        batch = points[step % 8]
        looks(net, batch)
        optimizer.zero_grad()
        loss = loss_of(net(batch), targets_of(batch, net))
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(loss.detach()))
    return losses


def ask(rate, **options):
    """Record a training, and return what became of the question."""
    with Recorder("x") as recorder:
        train(rate, **options)
    assert "faults" not in recorder.trace.conditions
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return [event for event in asked if event.question == "other rates"]


def last(losses):
    """Return the mean of the last fifth of sixty losses, if none has left all bounds."""
    finite = all(map(math.isfinite, losses[:60]))
    return pytest.approx(sum(losses[48:60]) / 12) if finite else math.inf


def cosine(optimizer):
    """Return a schedule that goes on from the rate that it finds."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)


@pytest.mark.parametrize("schedule", [None, cosine])
@pytest.mark.parametrize("rate", [1e-4, 3.0, 300.0])
def test_the_courses_are_those_that_a_training_would_take(rate, schedule) -> None:
    """Each number is what a training at that rate comes to, with a schedule or without."""
    (event,) = ask(rate, schedule=schedule)
    own, still, *others = (
        train(rate * times, schedule=schedule) for times in (1, 0, 0.01, 0.1, 10, 100)
    )
    assert (event.outcome, event.step, event.label) == ("answered", 0, "60 steps")
    assert (event.measured, event.reference) == (last(own), last(still))
    assert event.numbers == (60, *map(last, others))


def test_a_large_epsilon_is_brought_down() -> None:
    """The last number is what a training with that of torch comes to, at the run's own rate."""
    (event,) = ask(1e-3, epsilon=0.1)
    rates = (train(1e-3 * times, epsilon=0.1) for times in (0.01, 0.1, 10, 100))
    assert event.numbers == (60, *map(last, rates), last(train(1e-3, epsilon=1e-8)))
    (event,) = ask(1e-3, epsilon=1e-6)
    assert len(event.numbers) == 5


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="from torch 2.5 on")
def test_an_optimizer_with_several_epsilons() -> None:
    """They are left alone, and the rates are asked about."""
    with Recorder("x") as recorder:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.Adafactor(net.parameters(), lr=1e-6, eps=(None, 1e-3))
        for _ in range(20):
            batch = torch.randn(16, 6)
            optimizer.zero_grad()
            F.mse_loss(net(batch), batch.sum(1, keepdim=True)).backward()
            optimizer.step()
    (event,) = [e for e in recorder.trace if isinstance(e, WhatIf) and e.question == "other rates"]
    assert (event.outcome, len(event.numbers)) == ("answered", 5)


def test_what_learns_is_asked_no_further() -> None:
    """Whoever halves the loss could not learn far more."""
    options = {"targets_of": lambda batch, _: batch[:, :1]}
    (event,) = ask(0.1, **options)
    own = train(0.1, **options)
    assert (event.measured, event.reference, event.numbers) == (last(own), own[0], ())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"loss_of": lambda s, w: F.mse_loss(s, w) - 5}, "a loss is below zero"),
        (
            {"targets_of": lambda batch, net: net(batch).detach() + batch.mean()},
            "with other steps something else is learned",
        ),
        ({"steps": 10}, "too few steps were made"),
    ],
)
def test_when_nobody_can_tell(options, reason) -> None:
    """Each reason is told."""
    (event,) = ask(1e-3, **options)
    assert (event.outcome, event.reason) == ("void", reason)


def by_hand(scores, wanted):
    """Return a loss that no function of torch has made."""
    return (scores - wanted).square().mean()


def evaluate(net, batch):
    """Look at a model in evaluation mode."""
    net.eval()
    with torch.no_grad():
        net(batch[:2])
    net.train()


@pytest.mark.parametrize("options", [{}, {"looks": evaluate}], ids=["alone", "evaluated"])
def test_a_loss_by_hand(options) -> None:
    """It has the same numbers."""
    (event,) = ask(1e-4, loss_of=by_hand, **options)
    rates = (train(1e-4 * times, loss_of=by_hand) for times in (0.01, 0.1, 10, 100))
    assert event.numbers == (60, *map(last, rates))


def cut_off(batch, net):
    """Return targets that a model makes itself, cut off the graph."""
    return net(batch).detach() + batch.mean()


def without_gradients(batch, net):
    """Return targets of a model that makes them without gradients."""
    with torch.no_grad():
        return net(batch) + batch.mean()


def drawn(batch, net):
    """Return targets that are drawn by what a model says."""
    return torch.normal(net(batch), 1.0)


def weighed(scores, wanted):
    """Return a loss with weights that are made of what was learned."""
    with torch.no_grad():
        weights = (scores - wanted).abs()
    return (weights * (scores - wanted)).square().mean()


@torch.no_grad()
def weights_of(scores, wanted):
    """Return weights."""
    return (scores - wanted).abs()


def weighed_elsewhere(scores, wanted):
    """Return a loss with weights of a function that needs no gradients."""
    return (weights_of(scores, wanted) * (scores - wanted)).square().mean()


@pytest.mark.parametrize(
    "options",
    [
        *({"targets_of": each} for each in (cut_off, without_gradients, drawn)),
        *({"loss_of": each} for each in (weighed, weighed_elsewhere)),
    ],
    ids=["cut off", "without gradients", "drawn", "weighed", "weighed elsewhere"],
)
def test_a_loss_by_hand_with_targets_that_follow(options) -> None:
    """Other steps would learn something else; nobody tells where no function of torch does."""
    (event,) = ask(1e-4, **{"loss_of": by_hand, **options})
    assert (event.outcome, event.reason) == ("void", "with other steps something else is learned")


def taught(loss_of):
    """Ask about a loss whose targets a network in training mode has made before."""
    kept = {}

    def teach(net, batch):
        """Make the targets."""
        with torch.no_grad():
            kept["targets"] = net(batch) + batch.mean()

    (event,) = ask(1e-4, loss_of=loss_of, looks=teach, targets_of=lambda batch, _: kept["targets"])
    return event


def test_targets_that_a_network_has_made_before() -> None:
    """They follow from what was learned, whether a function of torch is told of them or not."""
    for loss_of in (by_hand, F.mse_loss):
        event = taught(loss_of)
        assert event.reason == "with other steps something else is learned"


def test_a_loss_of_torch_tells_its_targets() -> None:
    """Whatever else is computed makes no target."""

    def look(net, batch):
        """Call a network in training mode."""
        with torch.no_grad():
            net(batch[:2])

    (event,) = ask(1e-4, looks=look)
    assert len(event.numbers) == 5


def test_several_evaluations_of_a_step() -> None:
    """A step that needs another number of them learns from something else."""
    with Recorder("x") as recorder:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-4, line_search_fn="strong_wolfe")
        points = torch.randn(16, 6)

        def closure():
            """Return the loss."""
            optimizer.zero_grad()
            loss = (net(points) - points.sum(1, keepdim=True).sin()).square().mean()
            loss.backward()
            return loss

        for _ in range(14):
            optimizer.step(closure)
    asked = [e for e in recorder.trace if isinstance(e, WhatIf) and e.question == "other rates"]
    assert all(not event.numbers for event in asked)


def test_it_is_not_asked_where_a_loss_is_raised() -> None:
    """Then less would be more."""
    with Recorder("x") as recorder:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, maximize=True)
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(net(torch.randn(8, 6)), torch.randn(8, 1)).backward()
            optimizer.step()
    asked = {event.question for event in recorder.trace if isinstance(event, WhatIf)}
    assert "other rates" not in asked


def test_a_training_that_gives_up_what_has_diverged() -> None:
    """A child whose script raises has diverged, and the others are told."""

    def strict(scores, wanted):
        """Refuse what is no number."""
        loss = F.mse_loss(scores, wanted)
        if not loss < 300:
            raise ValueError(float(loss))
        return loss

    own = {"net": nn.Linear(6, 1), "targets_of": lambda b, _: 3 * b.sum(1, keepdim=True)}
    (event,) = ask(0.011, steps=14, loss_of=strict, **own)
    assert event.outcome == "answered"
    assert [math.isinf(each) for each in event.numbers] == [False] * 4 + [True]


def test_several_backward_passes_are_added_up() -> None:
    """As those of a window are in the trace."""
    with Recorder("x") as recorder:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
        sums = []
        for _ in range(20):
            optimizer.zero_grad()
            losses = [F.mse_loss(net(b), b.sum(1, keepdim=True)) for b in torch.randn(2, 16, 6)]
            for loss in losses:
                loss.backward()
            optimizer.step()
            sums.append(sum(float(loss.detach()) for loss in losses))
    (event,) = [e for e in recorder.trace if isinstance(e, WhatIf) and e.question == "other rates"]
    assert event.numbers[0] == 20
    assert event.measured == pytest.approx(sum(sums[16:]) / 4)


@pytest.mark.parametrize("factor", [0.0, 0.1, 10.0])
def test_rates_are_put_back_after_each_step(factor, request) -> None:
    """A schedule that goes on from what it finds is not led astray; a group may have no rate."""
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    multiplied = MultipliedRates(factor)
    handles = multiplied.install()
    request.addfinalizer(lambda: [handle.remove() for handle in handles])
    for rate in (0.1, 0.05, 0.025):
        before = net.bias.detach().clone()
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert float(before - net.bias.detach()) == pytest.approx(rate * factor, abs=1e-6)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        schedule.step()


class Outer(torch.optim.SGD):
    """An optimizer whose step is that of another one with the same groups."""

    def __init__(self, inner) -> None:
        super().__init__(inner.param_groups, lr=0.1)
        self.param_groups, self.inner = inner.param_groups, inner

    def step(self, closure=None):
        """Make the other one's."""
        return self.inner.step(closure)


def test_an_optimizer_that_steps_another_one(request) -> None:
    """The rate is multiplied once, and is put back."""
    net = nn.Linear(2, 1)
    optimizer = Outer(torch.optim.SGD(net.parameters(), lr=0.1))
    handles = MultipliedRates(10.0).install()
    request.addfinalizer(lambda: [handle.remove() for handle in handles])
    before = net.bias.detach().clone()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert float(before - net.bias.detach()) == pytest.approx(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("losses", "halved"),
    [([2.0, 1.1], False), ([2.0, 1.9, 0.9], True), ([1, 9], False), ([1, math.inf], False)],
)
def test_what_is_halved(losses, halved) -> None:
    """Half of the first loss, in the last fifth of the steps."""
    assert has_halved(losses) is halved


def test_the_end_of_some_steps() -> None:
    """A fifth of so many of them."""
    assert mean_end([*range(20)]) == 17.5
    assert mean_end([*range(20)], 10) == 8.5
    assert mean_end([3.0]) == 3.0
