"""Which way the scores of what is made are pulled: by its judge, and by who makes it."""

import weakref
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.adversaries import Adversaries, _Judge

LABELS = torch.arange(32)[:, None]


def play(
    loss_of_judge,
    loss_of_maker,
    *,
    penalty=lambda judge: 0.0,
    holds_both: bool = False,
    ask_at_once: bool = False,
    climbs: bool = False,
    before=lambda recorder, judge: None,
    probe: str = "same pull",
    steps: int = 20,
) -> list[Probe]:
    """Record a game of two modules, and return where they pull one way."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    judge = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    makers = [*maker.parameters(), *(judge.parameters() if holds_both else [])]
    makes = torch.optim.SGD(makers, lr=0.05, maximize=climbs)
    judges = torch.optim.SGD(judge.parameters(), lr=0.05)
    with Recorder("x") as recorder:
        before(recorder, judge)
        for _ in range(steps):
            made = maker(torch.randn(32, 3))
            judges.zero_grad()
            scores = judge(made.detach())
            if ask_at_once:
                pulls = torch.ones(3, *scores.shape)
                held = list(judge.parameters())
                torch.autograd.grad(scores, held, pulls, True, is_grads_batched=True)
            (loss_of_judge(judge(torch.randn(32, 2) + 3), scores) + penalty(judge)).backward()
            judges.step()
            makes.zero_grad()
            loss_of_maker(judge(made)).backward()
            makes.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == probe]


def tell_apart(real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return the loss of a discriminator."""
    scores, labels = torch.cat([real, made]), torch.cat([real * 0 + 1, made * 0]).detach()
    return F.binary_cross_entropy_with_logits(scores, labels)


def bound(real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return the hinge loss of a discriminator."""
    return F.relu(1 - real).mean() + F.relu(1 + made).mean()


def label(scores: torch.Tensor, value: float) -> torch.Tensor:
    """Return the loss of scores that are to be called real, or made."""
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, value))


@pytest.mark.parametrize(
    ("judge", "maker"),
    [
        (tell_apart, lambda scores: label(scores, 0.0)),
        (bound, lambda scores: scores.mean()),
        (lambda real, made: made.mean() - real.mean(), lambda scores: scores.mean()),
    ],
    ids=["cross-entropy", "hinge", "distance"],
)
def test_one_way_for_both_is_found(judge, maker) -> None:
    """Whatever the loss is, by its gradient."""
    assert play(judge, maker, climbs=True) == []
    (probe,) = play(judge, maker)
    assert (probe.measured, probe.label) == (20, "Sequential#2")
    assert probe.source.endswith(f"test_adversaries.py:{play.__code__.co_firstlineno + 32}")


@pytest.mark.parametrize(
    ("judge", "maker"),
    [
        (tell_apart, lambda scores: label(scores, 1.0)),
        (bound, lambda scores: -scores.mean()),
        # Each learns the same, in turns: nothing is told apart.
        (lambda real, made: label(real, 1.0) + label(made, 1.0), lambda s: label(s, 1.0)),
        # To confuse is to pull to the middle, either way.
        (tell_apart, lambda scores: (scores - scores.mean()).square().mean()),
    ],
    ids=["cross-entropy", "hinge", "in turns", "to the middle"],
)
def test_other_ways_are_fine(judge, maker) -> None:
    """What pulls the other way, and what is no game."""
    assert play(judge, maker) == []


def test_who_holds_the_judge_too_is_no_adversary() -> None:
    """A step of both is one of the judge's own."""
    assert play(tell_apart, lambda scores: label(scores, 0.0), holds_both=True) == []


def penalise(judge: nn.Module, batched: bool) -> torch.Tensor:
    """Return a penalty on slopes between data, whose scores are pulled up to find them."""
    between = (torch.randn(32, 2) + 2).requires_grad_()
    scores = judge(between)
    pulls = torch.ones(3, *scores.shape) if batched else torch.ones_like(scores)
    (slopes,) = torch.autograd.grad(
        scores, between, pulls, create_graph=True, is_grads_batched=batched
    )
    return (slopes.norm(dim=-1) - 1).square().mean()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("way", [1, -1])
def test_a_penalty_on_slopes_pulls_nothing(way: int, batched: bool) -> None:
    """What it asks its scores is of neither kind of data, and several slopes at once do no harm."""
    found = play(
        lambda real, made: made.mean() - real.mean(),
        lambda scores: way * scores.mean(),
        penalty=lambda judge: penalise(judge, batched),
    )
    assert len(found) == (way == 1)


def test_several_gradients_at_once_are_left_alone() -> None:
    """Of scores that are listened to they have no numbers; nothing is switched off."""
    assert play(tell_apart, lambda scores: label(scores, 1.0), ask_at_once=True) == []


def test_a_module_that_takes_the_place_of_another_is_judged_by_itself() -> None:
    """One that is gone may have had its identity."""

    def leave(recorder: Recorder, judge: nn.Module) -> None:
        """Leave what is known of one that is gone."""
        gone = nn.Linear(2, 1)
        known = recorder.watcher(Adversaries)._judges
        known[id(judge)] = _Judge(weakref.ref(gone), "gone")

    (probe,) = play(tell_apart, lambda scores: label(scores, 0.0), before=leave)
    assert probe.label == "Sequential#2"


def test_a_maker_that_pulls_both_ways_is_fine() -> None:
    """In turns, as where it is trained with noise in its labels."""
    turns = count()
    assert play(tell_apart, lambda scores: label(scores, float(next(turns) % 2))) == []


@pytest.mark.parametrize(
    ("judge", "made", "way"),
    [
        (lambda real, made: label(real, 1.0), 0, "up"),
        (lambda real, made: label(real, 1.0).detach() + label(made, 0.0), 20, "down"),
        (lambda real, made: (label(real, 1.0) + label(made, 1.0)) / 50, 20, "up"),
        (lambda real, made: F.relu(9 - real).mean() + F.relu(9 - made).mean(), 20, "up"),
        (lambda real, made: real.mean() + made.mean(), 20, "down"),
    ],
    ids=["left out", "detached", "one label", "one sign", "critic"],
)
def test_one_answer_to_all_is_found(judge, made: int, way: str) -> None:
    """Whatever is missing, or turned round."""
    (found,) = play(judge, lambda scores: label(scores, 1.0), probe="one pull")
    assert (found.reference, found.label) == (made, f"Sequential#2\n{way}")
    assert 20 <= found.measured <= 40  # scores that are high enough are pulled no more
    assert found.source.rpartition("/")[2].startswith("test_adversaries.py:")


@pytest.mark.parametrize(
    "judge",
    [
        tell_apart,
        bound,
        lambda real, made: made.mean() - real.mean(),
        # Of one kind alone, with both answers in it.
        lambda real, made: real.var() + 0 * made.sum(),
        lambda real, made: F.binary_cross_entropy_with_logits(real, (LABELS > 7).float()) / 50,
    ],
    ids=["cross-entropy", "hinge", "distance", "spread", "two labels"],
)
def test_two_answers_are_fine(judge) -> None:
    """In one loss, or in one pass."""
    assert play(judge, lambda scores: label(scores, 1.0), probe="one pull") == []


def test_a_few_games_say_nothing() -> None:
    """A loss may pull all scores one way at first, and nobody may learn from them."""
    one = {"probe": "one pull"}
    assert play(lambda real, _: label(real, 1.0), lambda s: label(s, 1.0), steps=7, **one) == []
    assert play(lambda real, _: label(real, 1.0), lambda s: 0 * s.sum(), **one) == []
    turns = count()
    first_five = lambda real, _: label(real, 1.0) * (next(turns) < 5)  # noqa: E731
    assert play(first_five, lambda s: label(s, 1.0), **one) == []
    mixed = count()
    now_and_then = lambda real, _: label(real, float(next(mixed) != 9))  # noqa: E731
    assert play(now_and_then, lambda s: label(s, 1.0), **one) == []
