"""What the judge says of sums over processes, from the values that they gave."""

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.ranks import RankCourse, Reduction
from trainguard.events.trace import Trace

Calls = list[tuple[float, ...]]


def judge(
    kind: str, inputs: tuple[Calls, Calls], outputs: Calls, norm: float = 1.0
) -> list[Finding]:
    """Judge the calls of one line in two processes, one for each step."""
    steps = tuple(range(len(inputs[0])))
    events = [
        Reduction(
            rank=rank,
            group="0:2:1 0",
            kind=kind,
            places=steps,
            steps=steps,
            inputs=tuple(given),
            outputs=tuple(outputs),
            source="train.py:7",
        )
        for rank, given in enumerate(inputs)
    ]
    count = len(steps)
    courses = [
        RankCourse(
            rank=r, optimizer="SGD", steps=steps, norms=(norm,) * count, scales=(1.0,) * count
        )
        for r in range(2)
    ]
    made = find_invariants("ranks.reduction_keeps_its_dtype")[0]
    trace = Trace("train", (*events, *courses))
    assert not made.evidence(trace)
    return list(made.judge(trace))


def test_sums_that_fit() -> None:
    """Roundings of losses, counts that come out exactly, small integers, minima, flags."""
    assert judge("all_reduce of 1 bfloat16, SUM", ([(131.0,)], [(134.0,)]), [(264.0,)]) == []
    assert judge("all_reduce of 1 float16, SUM", ([(0.3,)], [(0.1,)]), [(0.3999,)]) == []
    assert judge("all_reduce of 1 int32, SUM", ([(3.0,)], [(4.0,)]), [(7.0,)]) == []
    assert judge("all_reduce of 1 float16, MAX", ([(3.0,)], [(4.0,)]), [(4.0,)]) == []
    given = float("inf")  # as a process says that its gradients overflowed
    assert judge("all_reduce of 1 float16, SUM", ([(given,)], [(1.0,)]), [(given,)]) == []


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("all_reduce of 1 float16, SUM", ([(40000.0,)], [(30000.0,)]), [(float("inf"),)]),
        ("all_reduce of 1 uint8, SUM", ([(200.0,)], [(100.0,)]), [(44.0,)]),
        ("all_reduce of 1 int32, AVG", ([(2.0,)], [(3.0,)]), [(2.0,)]),
        (
            "all_reduce of 2 bfloat16, SUM",
            ([(0.5, 3.0), (0.5, 201.0)], [(0.5, 5.0), (0.25, 202.0)]),
            [(1.0, 8.0), (0.75, 404.0)],
        ),
    ],
)
def test_sums_that_do_not_fit(kind: str, inputs: tuple[Calls, Calls], outputs: Calls) -> None:
    """An overflow, what wraps around, a mean without its fraction, counts above 256."""
    (found,) = judge(kind, inputs, outputs)
    assert kind in str(found.at)


def test_large_sums_that_overflow() -> None:
    """Of gradients the step tells, which a scaler would have left out."""
    inputs = [(40000.0,)], [(30000.0,)]
    assert len(judge("all_reduce of 4096 float16, SUM", inputs, [], norm=float("inf"))) == 1
    assert judge("all_reduce of 4096 float16, SUM", inputs, [], norm=1.0) == []
