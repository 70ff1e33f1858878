"""The judge of what stays from step to step."""

import pytest

from trainguard.core.finding import Finding, Rank
from trainguard.events.base import Plain
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.growth import memory_does_not_grow

LINE = "/home/me/train.py:9"
HOW = "measured on cpu over 20 steps"


def judged(*seen: Usage, **promises: Plain) -> list[Finding]:
    """Judge events of a subject called train."""
    named = {f"budget:{name}": value for name, value in promises.items()}
    steps = Usage(quantity="steps", count=20)
    return list(memory_does_not_grow(Trace("train", (steps, *seen), {}, named)))


def kept(quantity: str, measured: float, place: str = "", detail: str = "") -> Usage:
    """Return an event of something that is kept."""
    return Usage(
        quantity=f"kept {quantity}", measured=measured, place=place, detail=detail, count=16, of=16,
        how=HOW, source=LINE,
    )  # fmt: skip


def test_nothing_kept_is_nothing_found() -> None:
    """Steps alone are no growth."""
    assert judged() == []


def test_graphs_are_found_whatever_they_take() -> None:
    """A graph of each step is broken without a byte of tensors; the module and keeper are named."""
    (finding,) = judged(kept("graphs", 0.0, "LSTM", "`state`"))
    assert finding.rank is Rank.BROKEN
    assert finding.summary == "`train` keeps the graphs of steps that are over"
    assert finding.at == "output of `LSTM`"
    assert finding.measured == "graphs of 16 of 16 steps, 0 B per step"
    assert finding.allowed == "graphs of 0 of 16 steps"
    assert finding.why.startswith("held by `state`: ")
    assert finding.source == LINE
    (finding,) = judged(kept("graphs", 10.0))
    assert finding.at == "the loss"


def test_graphs_within_the_budget_are_meant() -> None:
    """Where growth was declared, graphs are held against it like anything else."""
    assert judged(kept("graphs", 4096.0), growth_per_step=8192) == []
    assert len(judged(kept("graphs", 4096.0), growth_per_step=2048)) == 1
    assert len(judged(kept("graphs", 0.0), growth_per_step=0)) == 1


@pytest.mark.parametrize(("size", "found"), [(1023.0, False), (1024.0, True)])
def test_a_kib_per_step_is_found(size: float, found: bool) -> None:
    """Tensors and data of one KiB per step are broken, a byte less is nothing."""
    for quantity in ("tensors", "data"):
        assert [f.rank for f in judged(kept(quantity, size))] == [Rank.BROKEN] * found


def test_tensors_of_several_lines_add_up() -> None:
    """Many small leaks are one large one, told by the largest."""
    (finding,) = judged(kept("tensors", 600.0, "Net"), kept("tensors", 700.0, "", "`kept`, a list"))
    assert finding.measured == f"1.27 KiB per step, {HOW}"
    assert finding.allowed == "less than 1.00 KiB per step"
    assert finding.at == "made outside of modules"
    assert finding.why == "held by `kept`, a list"


def test_the_declared_growth_is_allowed() -> None:
    """What the budget says is the limit, to the byte."""
    assert judged(kept("tensors", 4096.0), growth_per_step=4096) == []
    (finding,) = judged(kept("tensors", 4097.0), growth_per_step=4096)
    assert finding.allowed == "4.00 KiB (4,096 B) per step, the budget's growth_per_step"
    assert judged(kept("data", 4096.0), growth_per_step=4096) == []


def test_many_small_objects_may_be_a_history() -> None:
    """Python's objects are a note, until there are more than any history has."""
    (finding,) = judged(kept("objects", 2000.0))
    assert finding.rank is Rank.NOTE
    assert "history" in finding.why
    (finding,) = judged(kept("objects", 16 * 1024.0))
    assert finding.rank is Rank.BROKEN


def test_what_one_pass_shows_is_a_note() -> None:
    """What the end of a pass may let go of is no more than a note."""
    for quantity in ("tensors so far", "data so far", "objects so far"):
        (finding,) = judged(kept(quantity, 1 << 20))
        assert finding.rank is Rank.NOTE
