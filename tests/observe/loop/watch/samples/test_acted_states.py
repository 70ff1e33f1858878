"""What is seen of episodes: whether all of them begin by one seed."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

LONG = 6


class Pond:
    """A duck that drifts, from a place that its generator draws, or from the middle."""

    def __init__(self, *, drawn: bool = True) -> None:
        self.rng = np.random.default_rng()
        self.drawn = drawn

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.place = self.rng.normal(size=3) if self.drawn else np.zeros(3)
        return self.place.astype(np.float32)

    def step(self) -> Any:
        """Drift."""
        self.place = self.place + self.rng.normal(size=3)
        return self.place.astype(np.float32)


def found(seeds: Any, *, drawn: bool = True, tests: int = 0, asked: int = 1) -> list[Probe]:
    """
    Train on episodes that are seeded in some way, and test some; return what was found.

    asked: one in so many first actions is asked of the critic; chance acts otherwise.
    """
    torch.manual_seed(0)
    pond, critic = Pond(drawn=drawn), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    seed, episode = iter(range(10**6)), iter(range(10**6))

    def run(own: int | None) -> list[torch.Tensor]:
        """Act through an episode."""
        states, turn = [torch.from_numpy(pond.reset(own))], next(episode)
        for place in range(LONG):
            if place or not turn % asked:
                with torch.no_grad():
                    critic(states[-1] + 0)
            states.append(torch.from_numpy(pond.step()))
        return states[:-1]

    with Recorder("x") as recorder:
        for _ in range(6):
            states = torch.stack([s for _ in range(3) for s in run(seeds(next(seed)))])
            loss = (critic(states)[:, 0] - states.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for number in range(tests):
                run(900 + number)
    events = recorder.trace
    return [e for e in events if isinstance(e, Probe) and e.probe == "alike starts"]


def test_episodes_by_one_seed_are_found() -> None:
    """Each begins with the same state, as often as one line has used one seed."""
    (probe,) = found(lambda _: 7)
    assert (probe.measured, probe.reference, probe.step) == (18.0, 18.0, 0)
    assert probe.label == "Linear\n7"
    assert "test_acted_states.py:" in probe.source
    (probe,) = found(lambda _: 7, tests=3)
    assert (probe.reference, probe.step) == (18.0, 3)


def test_chance_may_act_first() -> None:
    """Half of the first states that are seen are enough."""
    (probe,) = found(lambda _: 7, asked=2)
    assert (probe.measured, probe.reference) == (9.0, 18.0)


@pytest.mark.parametrize(
    "how",
    [
        {"seeds": lambda number: number},
        {"seeds": lambda _: None},
        {"seeds": lambda _: None, "drawn": False},
        {"seeds": lambda number: number, "tests": 1},
        {"seeds": lambda _: None, "drawn": False, "tests": 1},
        {"seeds": lambda _: 7, "drawn": False, "tests": 3},
    ],
    ids=[
        "new seeds",
        "one generator",
        "one start",
        "tests by one seed",
        "one start, tests",
        "one start, one seed",
    ],
)
def test_episodes_of_their_own_are_left_alone(how: dict[str, Any]) -> None:
    """Environments may begin in one state, and tests by one seed."""
    assert found(**how) == []


def test_what_makes_generators_can_be_pickled() -> None:
    """As where a process that is spawned is told to make one."""
    with Recorder("x"):
        written = pickle.dumps(np.random.default_rng)
        assert pickle.loads(written)(3).integers(9) == np.random.default_rng(3).integers(9)
    assert pickle.loads(written) is np.random.default_rng


def alike(batch: Any, *, first: int = 0, rows: int = 32) -> list[tuple[float, float, int]]:
    """
    Return what is found of an agent that acts on a state, and then learns from a batch.

    batch: makes the states, and what follows each, of all states that were acted on. first: in how
    many steps it learns before it is asked for the first time.
    """
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
    acted = [torch.randn(3)]
    with Recorder("x") as recorder:
        for step in range(100):
            acted.append(torch.randn(3))
            if step >= first:
                with torch.no_grad():
                    actor(acted[-1][None])
            if step < rows and not first:
                continue
            states, after = batch(acted, rows)
            with torch.no_grad():
                follows = critic(after)
            loss = (actor(states) - follows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    events = [e for e in recorder.trace if getattr(e, "probe", "") == "acted"]
    return [(probe.measured, probe.reference, probe.step) for probe in events]


def overwritten(acted, rows):
    """Return the latest state as often as there are rows, and as what follows."""
    return acted[-1].repeat(rows, 1), acted[-1].repeat(rows, 1)


def several(acted, rows):
    """Return the latest state for several actions, and where each of them leads."""
    return acted[-1].repeat(rows, 1), acted[-1] + torch.randn(rows, 3)


def asked_again(acted, rows):
    """Return the latest state for several actions, all of which another network is asked about."""
    states = acted[-1].repeat(rows, 1)
    return states, states


def drawn(acted, rows):
    """Return states as they were."""
    states = torch.stack(acted)[torch.randint(len(acted), (rows,))]
    return states, states + torch.randn(rows, 3)


def test_states_that_are_overwritten() -> None:
    """Where what follows is the state itself, none of them is repeated for several actions."""
    assert alike(overwritten) == [(32.0, 32.0, 1)]  # the first follows many
    for meant in (several, asked_again, drawn):
        assert alike(meant) in ([], [(1.0, 32.0, 1)])


def test_an_agent_that_learned_before_it_was_asked() -> None:
    """It is known once as many states were acted on as a batch has rows."""
    assert alike(overwritten, first=20) == [(32.0, 32.0, 0)]
    assert alike(drawn, first=20) == []
