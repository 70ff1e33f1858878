"""The judges of what an output may depend on, on hand-written traces."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Pass, Trace

JUDGES = {
    "samples_do_not_mix": "mixed",
    "future_does_not_leak": "future",
    "padding_is_ignored": "padding",
}
every_judge = pytest.mark.parametrize(("name", "quantity"), JUDGES.items())


def judge(name: str, *seen: Pass, **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    return list(find_invariants(f"model.{name}")[0].judge(Trace("net", seen, promises=promises)))


def change(quantity: str, measured: float, place: str = "logits", case: int = 0) -> Pass:
    """Write how much one output changed."""
    return Pass(
        quantity=quantity,
        place=place,
        at="sample 2 of 4, where `tokens` is edited",
        measured=measured,
        detail="`attend` (Attention)",
        case=case,
        sizes=(("B", 4), ("T", 16)),
    )


@every_judge
def test_a_leak_is_told_once(name: str, quantity: str) -> None:
    """The worst output stands in the finding, with the others beside it; cases are not repeated."""
    (finding,) = judge(
        name,
        change(quantity, 0.01),
        change(quantity, 0.5, "hidden"),
        change(quantity, 0.02, case=1),
        change(quantity, 0.0, "loss"),
    )
    assert finding.at == "hidden, sample 2 of 4, where `tokens` is edited, B=4 T=16"
    assert finding.measured == "changed by 0.5 of the largest output"
    assert finding.allowed == "changed by 1e-05 of the largest output"
    assert finding.elsewhere == ("logits",)
    assert finding.why.endswith("; first seen in `attend` (Attention)")
    assert finding.rank is Rank.BROKEN
    assert "`net`" in finding.summary


@every_judge
@pytest.mark.parametrize(("measured", "found"), [(0.0, 0), (0.9e-5, 0), (1.1e-5, 1), (1.0, 1)])
def test_what_rounding_may_change(name: str, quantity: str, measured: float, found: int) -> None:
    """A hundred-thousandth of the largest output is allowed."""
    assert len(judge(name, change(quantity, measured))) == found


@every_judge
def test_a_limit_of_its_own(name: str, quantity: str) -> None:
    """A subject may allow more, or less."""
    limit = f"limit:{name}"
    assert judge(name, change(quantity, 0.05), **{limit: 0.1}) == []
    assert len(judge(name, change(quantity, 1e-8), **{limit: 1e-9})) == 1


@every_judge
def test_other_leaks_are_another_judges(name: str, quantity: str) -> None:
    """Each judges its own quantity only."""
    others = [change(other, 1.0) for other in JUDGES.values() if other != quantity]
    assert judge(name, *others) == []
