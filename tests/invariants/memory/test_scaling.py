"""The judge of how memory grows with a size, and the powers behind it."""

from collections.abc import Callable
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.subjects.units import exceeds, fit_power, powers

LADDER = tuple(64 * 2**step for step in range(8))
WHOLE = st.integers(0, 10**9)


def judge(amounts: list[float], allowed: float = 1.0) -> list[Finding]:
    """Judge the memory of the model `net` at lengths that double."""
    seen = [
        Usage(quantity="size", place="T", measured=float(size), reference=float(amount))
        for size, amount in zip(LADDER, amounts, strict=False)
    ]
    grown = Usage(quantity="grown", place="T", measured=512.0, detail="activations of `net.a`")
    trace = Trace("net", (*seen, grown), promises={"power:T": allowed})
    return list(find_invariants("memory.memory_scales_at_most")[0].judge(trace))


@pytest.mark.parametrize(
    "law",
    [
        lambda n: 10**9,
        lambda n: 10**9 + 7 * n,
        lambda n: 10**6 + 7 * n * log2(n),
        lambda n: max(10**5, 300 * n),  # the optimizer is the peak, then the backward pass
        lambda n: max(10**5 + 3 * n, 300 * n),
        lambda n: 10**6 - n,
        lambda n: 4096 * n + n * n / 100,  # a square that is too small to matter here
        lambda n: 512 * -(-n // 512),
    ],
)
def test_no_false_alarm(law: Callable[[int], float]) -> None:
    """Constants, logarithms, other moments of the peak and blocks are no higher power."""
    for length in range(4, len(LADDER) + 1):
        assert judge([law(size) for size in LADDER[:length]]) == []


@pytest.mark.parametrize(
    ("law", "power"),
    [
        (lambda n: n * n, 2.0),
        (lambda n: 10**9 + n * n, 2.0),
        (lambda n: 10**9 + n**1.5, 1.5),
        (lambda n: 10**6 + 100 * n + n * n, 1.9),
        (lambda n: max(10**5, n * n), 2.0),
    ],
)
def test_a_higher_power_is_found(law: Callable[[int], float], power: float) -> None:
    """Under whatever constant, and for as long as it dominates what grows."""
    (found,) = judge([law(size) for size in LADDER])
    assert float(found.measured.split()[1].rstrip(":")) == pytest.approx(power, abs=0.11)
    assert found.allowed == "power 1.00, and 0.20 more"
    assert found.why == "most of the last doubling is 512 B of activations of `net.a`"
    assert judge([law(size) for size in LADDER], allowed=2.0) == []


def test_four_sizes_say_too_little() -> None:
    """Three powers must agree, which takes five sizes."""
    assert judge([n * n for n in LADDER[:4]]) == []
    assert len(judge([n * n for n in LADDER[:5]])) == 1


@given(WHOLE, st.integers(1, 10**6), st.floats(0.3, 3))
def test_the_power_of_a_law_is_found(constant: int, factor: int, power: float) -> None:
    """`c + a * n ** p` has the power p, whatever c and a."""
    amounts = [constant + factor * (n / 64) ** power * 10**6 for n in LADDER]
    assert fit_power(amounts) == pytest.approx(power, abs=0.01)


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=9))
def test_a_sum_of_lines_is_a_line(slopes: list[int]) -> None:
    """A sum of parts that grow in proportion has the power one."""
    amounts = [float(sum(slopes) * n) for n in LADDER]
    assert not exceeds(amounts, 1.0)
    assert all(power <= 1.0001 for power in powers(amounts))
