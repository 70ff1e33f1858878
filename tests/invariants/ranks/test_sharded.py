"""What the judges say of models of which each process has a part, by digests."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.ranks import RankCourse, write_sums
from trainguard.events.trace import Trace

PAIR = "0:2:1"


def course(
    rank: int, sums: list[int], size: float = 1.0, share: str = PAIR, **more: Any
) -> RankCourse:
    """Write the steps of one process that holds one parameter as others do."""
    count = 8
    told: dict[str, Any] = {
        "fingerprints": tuple((i + 1,) for i in range(count)),
        "losses": (0.5,) * count,
        "draws": ((7 + i, 0, 0) for i in range(count)),
        **more,
    }
    told["draws"] = tuple(told["draws"])
    return RankCourse(
        rank=rank,
        optimizer="AdamW",
        made=count,
        steps=tuple(range(count)),
        names=("Net.norm.weight",),
        sharded=True,
        looks=(-1, 0, 1),
        sums=tuple(write_sums((each,)) for each in sums),
        shares=(share,),
        sizes=(size,),
        tensor=PAIR,
        **told,
    )


def judge(name: str, *courses: RankCourse) -> list[Finding]:
    """Judge some processes with one invariant."""
    made, trace = find_invariants(f"ranks.{name}")[0], Trace("train", courses)
    found = list(made.judge(trace))
    assert not (found and made.evidence(trace))
    return found


@pytest.mark.parametrize(
    ("share", "sums", "size", "rank"),
    [
        (PAIR, [1, 2, 3], 1.1, None),  # the same as the other
        (PAIR, [1, 2, 4], 1.1, Rank.BROKEN),
        (PAIR, [1, 2, 4], 1.0 + 1e-6, Rank.NOTE),  # by a rounding
        (f"{PAIR} plain", [1, 2, 4], 1.1, Rank.BROKEN),  # after a step that left it alike
        (f"{PAIR} plain", [1, 4, 5], 1.1, Rank.NOTE),
        (f"{PAIR} plain", [6, 7, 8], 1.1, None),  # of its own from the beginning
    ],
)
def test_what_several_hold(share: str, sums: list[int], size: float, rank: Rank | None) -> None:
    """Of what no mesh speaks it is only known from how it began."""
    found = judge(
        "replicated_parameters_agree",
        course(0, [1, 2, 3], share=share),
        course(1, sums, size, share=share),
    )
    assert [each.rank for each in found] == ([rank] if rank else [])


def test_plain_parameters_of_other_data() -> None:
    """Processes with other inputs may be anything, experts for one."""
    other = tuple((100 + i,) for i in range(8))
    share = f"{PAIR} plain"
    courses = (
        course(0, [1, 2, 3], share=share),
        course(1, [1, 2, 4], 1.1, share, fingerprints=other),
    )
    assert judge("replicated_parameters_agree", *courses) == []


def test_losses_of_a_tensor_group() -> None:
    """They differ with the random numbers; without them they may be of parts of a sequence."""
    other, draws = (0.7,) * 8, [(90 + i, 0, 0) for i in range(8)]
    name = "replicated_activations_agree"
    first = course(0, [1, 2, 3])
    (found,) = judge(name, first, course(1, [1, 2, 3], losses=other, draws=draws))
    assert found.rank is Rank.NOTE
    assert judge(name, first, course(1, [1, 2, 3], losses=other)) == []
    assert judge(name, first, course(1, [1, 2, 3], draws=draws)) == []
