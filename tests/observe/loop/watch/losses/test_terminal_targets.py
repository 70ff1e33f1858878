"""Whether targets are known to count what follows the end of an episode."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Values = Callable[[nn.Module, nn.Module, torch.Tensor], torch.Tensor]
Target = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def past(reward: torch.Tensor, done: torch.Tensor, follows: torch.Tensor) -> torch.Tensor:
    """Return targets that count what follows an end."""
    return reward + 0.9 * follows


def masked(reward: torch.Tensor, done: torch.Tensor, follows: torch.Tensor) -> torch.Tensor:
    """Return targets that do not."""
    return reward + 0.9 * follows * (1 - done)


def best(net: nn.Module, late: nn.Module, after: torch.Tensor) -> torch.Tensor:
    """Return what the best action is worth."""
    return late(after).max(1).values


def double(net: nn.Module, late: nn.Module, after: torch.Tensor) -> torch.Tensor:
    """Return what the best action of one network is worth to the other."""
    return late(after).gather(1, net(after).argmax(1, keepdim=True)).squeeze(1)


def lesser(net: nn.Module, late: nn.Module, after: torch.Tensor) -> torch.Tensor:
    """Return the smaller one of two values."""
    return torch.minimum(late(after).amax(1), net(after).amax(1))


def by_function(chosen: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss of torch."""
    return F.smooth_l1_loss(chosen.unsqueeze(1), target.unsqueeze(1))


def by_hand(chosen: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return squares that are written out."""
    return (target - chosen).pow(2).mean()


def learn(
    make: Target,
    values: Values = best,
    loss_of: Callable = by_function,
    reward: str = "reward",
    **names: Callable,
) -> tuple[list[Probe], bool]:
    """Learn values in 12 steps; names: of variables with what is made of the ends."""
    torch.manual_seed(0)
    net, late = (nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            flags = (torch.rand(32) < 0.2).float()
            paid = torch.randn(32) + 9 * flags * ("last" in names)
            with torch.no_grad():
                target = make(paid, flags, values(net, late, torch.randn(32, 3)))
            chosen = net(torch.randn(32, 3))[:, 0]
            given = {n: to(flags) for n, to in names.items() if n != "last"} or {"done": flags}
            step_once(optimizer, loss_of, chosen, target, {reward: paid, **given})
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ends bootstrapped"]
    return found, "ends bootstrapped" in recorder.trace.conditions["looked"]


def step_once(optimizer, loss_of, chosen, goal, batch) -> None:
    """Make a step with the variables of a batch."""
    loss = loss_of(chosen, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("loss_of", [by_function, by_hand])
@pytest.mark.parametrize("values", [best, double, lesser])
def test_what_follows_an_end_counts(values: Values, loss_of: Callable) -> None:
    """Whatever is taken of networks, and whatever the loss."""
    (found,), _ = learn(past, values, loss_of)
    assert found.measured == found.reference > 20
    assert (found.label, found.step < 10) == ("done", True)
    assert learn(masked, values, loss_of) == ([], True)


@pytest.mark.parametrize("name", ["fell", "has_crashed", "game_over", "is_last"])
def test_ends_by_other_names(name: str) -> None:
    """What happened may give them their name."""
    (found,), _ = learn(past, **{name: torch.clone})
    assert found.measured == found.reference > 20
    assert learn(masked, **{name: torch.clone}) == ([], True)


def test_rewards_by_another_name() -> None:
    """What a target is made of is known by its numbers, where a loss function is given it."""
    (found,), _ = learn(past, reward="br")
    assert found.measured == found.reference > 20
    assert learn(masked, reward="br") == ([], True)
    assert learn(past, loss_of=by_hand, reward="br") == ([], False)
    assert learn(past, reward="bonus") == ([], False)


def test_ends_that_are_surely_so() -> None:
    """By their name, or by rewards that no others have."""
    for told in ({"terminated": torch.clone}, {"not_done": lambda ends: 1 - ends, "last": int}):
        (found,), _ = learn(past, **told)
        assert found.step == found.measured


def test_ends_beside_a_limit() -> None:
    """What says that a limit has cut an episode is not asked for its ends."""
    (found,), _ = learn(past, done_limit=torch.zeros_like, done=torch.clone)
    assert found.label == "done"


@pytest.mark.parametrize(
    "told",
    [
        {"truncated": torch.clone, "done": torch.clone},
        {"terminated": torch.zeros_like, "done": torch.clone},
        {"discount": torch.ones_like, "done": torch.clone},
        {"mask": torch.clone},
        {"done_limit": torch.clone},
        {"done": torch.clone, "reward": "intrinsic_reward"},  # it is meant to outlive episodes
    ],
    ids=" ".join,
)
def test_episodes_that_were_cut_may_go_on(told: dict) -> None:
    """What a limit of time has ended says so by another name."""
    assert learn(past, **told) == ([], False)


@pytest.mark.parametrize(
    "make",
    [
        lambda reward, done, follows: (reward + 0.9 * follows).clamp(-1, 1),
        lambda reward, done, follows: reward + torch.rand(32),
        lambda reward, done, follows: reward,
        lambda reward, done, follows: reward + 0.1 * follows,
        lambda reward, done, follows: reward + 0.9 * follows + 0.3 * done,
        lambda reward, done, follows: reward + 0.9 * follows + done * (torch.arange(32) % 2),
    ],
    ids=["clipped", "by chance", "reward alone", "a tenth", "others at ends", "at some ends"],
)
def test_other_targets(make: Target) -> None:
    """They are no reward and a share of what a network returns."""
    assert learn(make) == ([], False)


def test_some_ends_may_be_passed() -> None:
    """Where one target is a reward alone, the others may have been cut: both are told."""
    (found,), _ = learn(lambda r, d, v: r + 0.9 * v * (1 - d * (torch.arange(32) % 2)))
    assert 0 < found.measured < found.reference


def test_an_entropy_bonus() -> None:
    """What follows may have the logarithm of a probability taken off."""
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            reward, done = torch.randn(32), torch.rand(32) < 0.2
            with torch.no_grad():
                policy = Categorical(logits=torch.randn(32, 4))
                next_log_prob = policy.log_prob(policy.sample())
                goal = reward + 0.9 * (net(torch.randn(32, 3))[:, 0] - 0.2 * next_log_prob)
            loss = F.mse_loss(net(torch.randn(32, 3))[:, 0], goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del done, next_log_prob, reward
    (found,) = [e for e in recorder.trace if isinstance(e, Probe) and "bootstr" in e.probe]
    assert found.measured == found.reference > 20


def as_it_is(flags: torch.Tensor) -> torch.Tensor:
    """Return the marks themselves."""
    return flags


def test_marks_of_another_name() -> None:
    """The only marks beside the rewards are those of the ends, though nothing else says so."""
    for more in ({}, {"last": as_it_is}):
        (probe,), _ = learn(past, churned=as_it_is, **more)
        assert (probe.label, probe.step) == ("churned", 0)
        assert probe.measured == probe.reference > 4
    assert learn(masked, churned=as_it_is)[0] == []


def test_marks_that_are_no_ends() -> None:
    """An action is none; of two marks nobody knows which is the end; where one is named, it is."""
    other = torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat(8)
    assert learn(past, action=as_it_is)[0] == []
    assert learn(past, churned=as_it_is, weekend=lambda _: other)[0] == []
    (probe,), _ = learn(past, weekend=lambda _: other, done=as_it_is)
    assert probe.label == "done"


def test_actions_that_are_numbered() -> None:
    """They are no marks; what a script throws away may be one."""
    (probe,), _ = learn(past, a2=lambda flags: 1 - flags.roll(1), _=as_it_is)
    assert probe.measured == probe.reference > 4
    assert probe.step == 0


def test_a_reward_of_zeros_and_ones() -> None:
    """By another name, and with no other marks beside it: it marks no ends."""
    probes, _ = learn(lambda r, d, v: d + 0.9 * v, reward="other", paid=as_it_is)
    assert probes == []


def test_steps_without_ends_are_no_tries() -> None:
    """Ends may come late, and other losses may be learned from in between."""
    torch.manual_seed(0)
    net, late, actor = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *actor.parameters()], lr=0.01)
    with Recorder("x") as recorder:
        for step in range(40):
            bd = (torch.rand(32) < 0.2 * (step > 30)).float()[:, None]
            br = torch.randn(32, 1)
            with torch.no_grad():
                goal = br + 0.9 * late(torch.randn(32, 3))
            for loss in (
                F.mse_loss(net(torch.randn(32, 3)), goal),
                actor(torch.randn(32, 3)).mean(),
            ):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert len(bd) == len(br)
    (probe,) = (e for e in recorder.trace if getattr(e, "probe", "") == "ends bootstrapped")
    assert probe.label == "bd"
