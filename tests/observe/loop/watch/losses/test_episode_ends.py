"""Whether returns are known to reach past the ends of episodes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Table = np.ndarray
STEPS, PLACES = 40, 3


def discounted(rewards: Table, dones: Table, discount: float = 0.9, lag: int = 0) -> Table:
    """Return returns that end with their episodes; with a lag, at flags of those that begin."""
    made, running = np.zeros_like(rewards), np.zeros_like(rewards[0])
    flags = np.concatenate([dones[lag:], np.zeros_like(dones[:lag])])
    for t in range(len(rewards))[::-1]:
        running = rewards[t] + discount * (1 - flags[t]) * running
        made[t] = running
    return made


def joined(rewards: Table, dones: Table) -> Table:
    """Return returns as if all episodes were one."""
    return discounted(rewards, 0 * dones)


def advantages(
    rewards: Table, dones: Table, values: Table, ends: bool, sums: bool | None = None
) -> Table:
    """Return what GAE estimates; ends, sums: whether values and what is added up are cut."""
    sums = ends if sums is None else sums
    made, running = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for t in range(len(rewards))[::-1]:
        live, kept = 1 - dones[t] * ends, 1 - dones[t] * sums
        after = values[t + 1] if t + 1 < len(values) else 0.0 * values[t]
        running = rewards[t] + 0.95 * live * after - values[t] + 0.95 * 0.9 * kept * running
        made[t] = running
    return made


def rollout(seed: int, shape: tuple[int, ...]) -> tuple[Table, Table, Table]:
    """Return rewards, ends and values of a rollout."""
    draw = np.random.default_rng(seed)
    dones = (draw.uniform(size=shape) < 0.25).astype(np.float64)
    return draw.normal(size=shape), dones, draw.normal(size=shape)


def found(
    make: Callable[..., Table], shape: tuple[int, ...] = (STEPS, PLACES), **changes: Callable
) -> list[tuple[float, float]]:
    """Learn from what is made of three rollouts; return what is told of it."""
    net = nn.Linear(2, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for seed in range(3):
            rewards, dones, values = rollout(seed, shape)
            made = make(rewards, dones, values)
            rewards = changes.get("rewards", lambda table: table)(rewards)
            dones = changes.get("dones", lambda table: table)(dones)
            optimizer.zero_grad()
            (net(torch.randn(8, 2)).mean() * float(made.mean())).backward()
            optimizer.step()
            del values
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ends passed"]
    return [(probe.measured, probe.reference) for probe in probes]


def normalise(table: Table) -> Table:
    """Return numbers of mean 0 and deviation 1."""
    return (table - table.mean()) / table.std()


@pytest.mark.parametrize("shape", [(STEPS,), (STEPS, PLACES), (STEPS, PLACES, 1)])
@pytest.mark.parametrize("scale", [lambda table: table, normalise])
def test_returns(shape: tuple[int, ...], scale: Callable) -> None:
    """Whatever their shape and scale."""
    assert found(lambda r, d, v: scale(joined(r, d)), shape) == [(3.0, 3.0)]
    assert found(lambda r, d, v: scale(discounted(r, d)), shape) == [(0.0, 3.0)]
    assert found(lambda r, d, v: scale(discounted(r, d, lag=1)), shape) == [(0.0, 3.0)]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("ends", "sums"), [(False, False), (True, True), (True, False)], ids=["none", "both", "values"]
)
def test_advantages(ends: bool, sums: bool, flat: bool) -> None:
    """Those of GAE are made of values, too, of which the next may be cut alone."""
    net = nn.Linear(2, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        rewards, dones, vals = rollout(0, (STEPS, PLACES))
        adv = torch.tensor(advantages(rewards, dones, vals, ends, sums)).float()
        if flat:  # as what is learned from in parts, after steps that were kept one by one
            rewards, dones, vals = (
                [torch.tensor(step).float() for step in table] for table in (rewards, dones, vals)
            )
            adv = adv.flatten()
        (net(torch.randn(8, 2)).mean() * adv.mean()).backward()
        optimizer.step()
    probe = next(e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ends passed")
    assert (probe.measured, probe.reference, probe.label) == (1.0 - sums, 1.0, "adv" * (not sums))


@pytest.mark.parametrize(
    "dones",
    [lambda d: 1 - d, lambda d: d > 0, lambda d: torch.tensor(d, dtype=torch.uint8)],
    ids=["opposite", "flags", "bytes"],
)
def test_flags_of_all_kinds(dones: Callable) -> None:
    """Ends may be said by ones, by zeros, and by other types."""
    assert found(lambda r, d, v: joined(r, d), dones=dones) == [(3.0, 3.0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda r, d, v: np.arange(r.size, dtype=np.float64).reshape(r.shape),
        lambda r, d, v: 0.9 ** np.arange(r.size, dtype=np.float64).reshape(r.shape),
        lambda r, d, v: joined(r, d) + np.sin(np.arange(r.size)).reshape(r.shape),
        lambda r, d, v: v,
        lambda r, d, v: 2 * r + 1,
        lambda r, d, v: np.ones_like(r),
    ],
    ids=["steps", "decay", "baseline", "noise", "rewards", "ones"],
)
def test_what_is_not_made_of_rewards(make: Callable) -> None:
    """Numbers of steps, weights by age, and anything else say nothing."""
    assert found(make) == []


def test_equal_rewards() -> None:
    """Where every step is worth the same, returns are still those of their episodes or not."""

    def of_ones(ends: bool) -> Callable[..., Table]:
        return lambda r, d, v: discounted(np.ones_like(r), d * ends)

    assert found(of_ones(False), rewards=np.ones_like) == [(3.0, 3.0)]
    assert found(of_ones(True), rewards=np.ones_like) == [(0.0, 3.0)]


def test_episodes_of_one_length_that_are_paid_at_their_ends() -> None:
    """What the next episode returns is then the same each time: nothing can be told."""
    ends = np.zeros((STEPS, 1))
    ends[4::5] = 1.0

    def paid(r: Table, d: Table, v: Table) -> Table:
        return discounted(-ends, ends)

    found_here = found(paid, (STEPS, 1), rewards=lambda r: -ends, dones=lambda d: ends)
    assert [measured for measured, _ in found_here] in ([], [0.0])


def test_few_ends() -> None:
    """Two ends fit by chance."""
    few = np.zeros((STEPS, PLACES))
    few[[5, 9], 0] = 1.0
    assert found(lambda r, d, v: joined(r, d), dones=lambda d: few) == []
