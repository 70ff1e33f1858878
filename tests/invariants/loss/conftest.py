"""Hand-written traces of losses, and what the judges say about them: torch takes no part."""

from collections.abc import Callable

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Sample, Trace


def judge(name: str, *samples: Sample, dtype: str = "float32", **promises) -> list[Finding]:
    """Judge samples with one invariant; a promise `a__b` is called `a:b`."""
    said = {key.replace("__", ":"): value for key, value in promises.items()}
    trace = Trace("nll", samples, {"dtype": dtype}, said)
    return list(find_invariants(name)[0].judge(trace))


def write(quantity: str, measured: float, **more) -> Sample:
    """Write one sample of the input `x`."""
    return Sample(quantity=quantity, measured=measured, **{"input": "x", **more})


def breaks(name: str, one: Sample, **promises) -> bool:
    """Say whether one sample breaks an invariant; it may not be a note."""
    found = judge(name, one, **promises)
    assert all(f.rank is Rank.BROKEN and f.event is one for f in found)
    return bool(found)


def pull(**pulls: float) -> list[Sample]:
    """Write one sample for the pull of each component."""
    return [write("component", size, label=name, input="") for name, size in pulls.items()]


@pytest.fixture(scope="session")
def judged() -> Callable[..., list[Finding]]:
    """Judge samples with one invariant."""
    return judge


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    """Write one sample."""
    return write


@pytest.fixture(scope="session")
def broken() -> Callable[..., bool]:
    """Say whether one sample breaks an invariant."""
    return breaks


@pytest.fixture(scope="session")
def components() -> Callable[..., list[Sample]]:
    """Write the pulls of components."""
    return pull
