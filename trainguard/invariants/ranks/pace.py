"""Judgements of how processes keep up with each other: as many steps, and nobody is waited for."""

from collections.abc import Iterator
from statistics import median_low
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import integer, number, ranks_text
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import evidence, odd_ones, ranks_of, replicas, runs

_LEAST = 20  # steps, of which the first of each process is left out
_LATE = 0.5  # of a step that a process waits for its data, while
_TOLD = 2  # processes that wait, of which each is told where
_PROMPT = 0.1  # of a step is what most wait


def _lacks_times(trace: Trace[Any]) -> str:
    """Return why nobody could be seen waiting."""
    missing = evidence(trace)
    groups = list(replicas(trace, lone=True))
    made = [course.made for group in groups for course in group.courses]
    if not groups:
        return missing
    return "" if min(made) >= _LEAST else f"fewer than {_LEAST} steps were made"


@invariant("ranks", evidence=evidence)
def ranks_make_the_same_steps(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All replicas make the same number of steps.

    Judges: how many steps each optimizer made, in processes that are replicas and came to their
        end; steps that another one had made, or begun and failed in, beyond those of one that had
        ended. It says in which call the others waited for one that had left early.
    Allows: what differs under `join()`, which is for uneven inputs.
    Misses: steps that one process makes earlier than another.
    Why: a step that one process leaves out (an empty batch, a loss that is not finite, another
        length of its loader) leaves its parameters behind, or the others waiting for it.
    Source: pytorch#69031; accelerate#2665; torchtitan#1733.
    """
    over = {run.rank for run in runs(trace) if run.ended == "finished" and not run.missing}
    stood = {run.rank: run.standing for run in runs(trace) if run.rank not in over}
    in_pass = {run.rank for run in runs(trace) if run.in_pass}
    for group in replicas(trace):
        begun = {c.rank for c in group.courses if c.begun} | in_pass
        counts = {c.rank: c.made + (c.rank in begun - over) for c in group.courses}
        fewest = min((counts[rank] for rank in over & set(counts)), default=max(counts.values()))
        courses = [c for c in group.courses if c.rank in over or counts[c.rank] > fewest]
        made = [counts[course.rank] for course in courses]
        if len(set(made)) > 1:
            left = [c.rank for c in courses if c.rank in over and counts[c.rank] == min(made)]
            told = _tell_waiting(left, stood) if left else ""
            odd = left if told else odd_ones(made, ranks_of(courses))
            own = courses[ranks_of(courses).index(odd[0])]
            other = next(c for c in courses if counts[c.rank] != counts[own.rank])
            more = " and one that was begun" if counts[other.rank] > other.made else ""
            yield Finding(
                f"the replicas of `{trace.subject}` make different numbers of steps",
                group.at(min(made), odd),
                integer(counts[own.rank], "steps") + f" against {other.made}{more}",
                "as many in each process",
                why=told + "perhaps one process skips a batch or a loss, has a shorter loader (see"
                " torch.distributed.algorithms.Join), or decides alone to stop",
                source=own.source,
            )


def _tell_waiting(left: list[int], stood: dict[int, str]) -> str:
    """Write who has left, and who waited: "rank 0 had left, rank 1 waits at train.py:12, ...: "."""
    named = [
        f"rank {rank} waits at " + place.replace("\\", "/").rpartition("/")[2]
        for rank, place in sorted(stood.items())
        if ", in " in place
    ]
    return f"{ranks_text(left)} had left, {', '.join(named[:_TOLD])}: " if named else ""


@invariant("ranks", evidence=_lacks_times)
def stragglers_are_rare(trace: Trace[Any]) -> Iterator[Finding]:
    """
    No replica keeps the others waiting for its data.

    Judges: the share of its steps that each process waits for its loader, in the median: a note
        where it is more than half for some and less than a tenth for most.
    Allows: whatever all wait for alike. Runs of fewer than 20 steps.
    Misses: processes that compute more slowly, which looks alike in all of them.
    Why: each step takes as long as that of the slowest process.
    Source: Megatron-LM, megatron/core/utils.py (StragglerDetector).
    """
    for group in replicas(trace, lone=True):
        shares = [course.waiting for course in group.courses]
        late = [c for c, part in zip(group.courses, shares, strict=True) if part > _LATE]
        if late and median_low(shares) < _PROMPT and min(c.made for c in group.courses) >= _LEAST:
            yield note(
                f"some replicas of `{trace.subject}` keep the others waiting",
                group.at(late[0].steps[0], ranks_of(late)),
                number(100 * max(shares), "%", ".3g") + " of a step is spent waiting for data",
                number(100 * _LATE, "%", ".3g") + ", where most wait for less",
                why="perhaps its storage is slower, or it has fewer workers",
                source=late[0].source,
            )
