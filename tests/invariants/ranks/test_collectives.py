"""What the judges say about calls on a group, by logs that the watcher itself has written."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.joined import join
from trainguard.events.ranks import GroupCalls, RankRun
from trainguard.events.trace import Trace
from trainguard.observe.loop.watch.runs.collectives import Collectives, _GroupLog
from trainguard.observe.loop.watch.runs.reduced_values import ReducedValues

SUM, BARRIER = "all_reduce of 16 float32, SUM", "barrier"


def told(calls: list[str], rank: int = 0, timeout: float = 600.0) -> GroupCalls:
    """Return what the watcher tells of some calls, one for each step."""
    log = _GroupLog("0:2:1 0", timeout, "train.py:3")
    for step, call in enumerate(calls):
        log.add(call, step)
    watcher = Collectives.__new__(Collectives)
    watcher._logs, watcher._values = {"0": log}, ReducedValues()
    (event,) = watcher.finish()
    return event.__class__(**{n: getattr(event, n) for n in event.__slots__} | {"rank": rank})


def judge(*logs: GroupCalls, ends: tuple[str, ...] = (), name: str = "collectives_match") -> Any:
    """Judge the calls of some processes."""
    ends = ends or ("finished",) * len(logs)
    runs = [RankRun(rank=i, world=len(logs), ended=end) for i, end in enumerate(ends)]
    made = find_invariants(f"ranks.{name}")[0]
    trace = join([Trace("train", (*runs, *logs))])
    found: list[Finding] = list(made.judge(trace))
    assert not (found and made.evidence(trace))
    return found


def test_the_first_call_that_differs() -> None:
    """It is told by its number, from 1; the processes that are alone in it are named."""
    odd = [SUM] * 7 + [BARRIER, *[SUM] * 12]
    (found,) = judge(told([SUM] * 20), told(odd, 1), told([SUM] * 20, 2))
    assert found.at == "call 8 of ranks 0 and 1, rank 1"
    assert found.measured == f"`{SUM}` against `{BARRIER}`"
    assert (found.at.step, found.at.rank, found.rank) == (7, 1, Rank.BROKEN)
    assert judge(told([SUM] * 20), told([SUM] * 20, 1)) == []


@pytest.mark.parametrize("place", [600, 5_000, 19_000, 19_995])
def test_a_call_far_into_a_long_run(place: int) -> None:
    """Where calls are not told one by one, sums of them say after which one it is."""
    calls = [SUM, SUM, BARRIER] * 6_666 + [SUM]
    odd = list(calls)
    odd[place] = "reduce"
    log = told(calls)
    assert len(log.first) + len(log.last) + len(log.marks) < 1200
    (found,) = judge(log, told(odd, 1))
    told_as = int(found.at.partition("call ")[2].split()[0])
    assert place - log.stride <= told_as <= place + 1
    assert judge(log, told(calls, 1)) == []


def test_a_process_that_has_ended_makes_no_call() -> None:
    """Another one waits for it; of one that was stopped or failed nobody knows."""
    pair = told([SUM] * 20), told([SUM] * 19, 1)
    (found,) = judge(*pair, ends=("stopped", "finished"))
    assert found.measured == f"`{SUM}` against `nothing more`"
    assert found.at.startswith("call 20 of ranks 0 and 1, rank 1")
    for ends in (("finished", "stopped"), ("failed", "failed"), ("stopped", "stopped")):
        assert judge(*pair, ends=ends) == []
    long = told([SUM] * 2000), told([SUM] * 1999, 1)
    (found,) = judge(*long)
    assert found.at.startswith("call 2000 of")


@pytest.mark.parametrize(
    ("seconds", "measured"),
    [(1.0, "1 s"), (12e6, "139 days"), (10.0, ""), (86_400.0, ""), (0.0, "")],
)
def test_timeouts(seconds: float, measured: str) -> None:
    """Days and single seconds are a note; of a group that tells none, nothing is said."""
    logs = told([], timeout=seconds), told([], 1, timeout=seconds)
    found = judge(*logs, name="timeouts_are_sane")
    assert [one.measured for one in found] == ([measured] if measured else [])
    assert {one.rank for one in found} <= {Rank.NOTE}
