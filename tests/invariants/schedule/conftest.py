"""Hand-written traces of schedules, and what the judges say about them."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Tick, Trace


def write(
    rates: Iterable[float | Sequence[float]], phase: str = "run", first: int = 0, **more
) -> list[Tick]:
    """Write one drive: a tick for each rate, or for each tuple of rates."""
    several = [tuple(r) if isinstance(r, Sequence) else (r,) for r in rates]
    return [Tick(phase=phase, step=first + i, rates=r, **more) for i, r in enumerate(several)]


def judge(name: str, events: Iterable[Tick], **promises) -> list[Finding]:
    """Judge a trace with one invariant."""
    trace = Trace("lr", tuple(events), promises={"unit": "step", **promises})
    return list(find_invariants(name)[0].judge(trace))


def rank(name: str, rates: Iterable[float | Sequence[float]], **promises) -> list[str]:
    """Judge one run and return how sure each finding is."""
    return [finding.rank.value for finding in judge(name, write(rates), **promises)]


@pytest.fixture(scope="session")
def ticks() -> Callable[..., list[Tick]]:
    """Write one drive of a schedule."""
    return write


@pytest.fixture(scope="session")
def judged() -> Callable[..., list[Finding]]:
    """Judge ticks with one invariant."""
    return judge


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[str]]:
    """Judge rates with one invariant, and return the ranks of the findings."""
    return rank
