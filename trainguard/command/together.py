"""Several processes of one run, judged together: those of a launcher, or those of the script."""

import os
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainguard.command import ranks
from trainguard.command.options import SILENCE
from trainguard.command.run_request import RunRequest
from trainguard.core.errors import SubjectError
from trainguard.core.measure import ranks_text
from trainguard.events.joined import digest, join, share_columns
from trainguard.events.loop import Step
from trainguard.events.ranks import ReplicaSums
from trainguard.events.trace import Trace
from trainguard.judging.judge import check_steps, judge_run
from trainguard.judging.verdict import Verdict
from trainguard.report.text import render_verdict

# Of one invariant on several threads, the later in this list is told.
_WEIGHTS: Final = ("skipped", "stale", "passed", "known", "excused", "broken")


def choose_trace(order: RunRequest, recorder: Any, spawned: Any) -> tuple[Any, ...]:
    """
    Return the order with what is judged: this process, or the first that it started.

    Where it trains as one of a group with those that it started, it is the first of them. Else of
    this process, each thread that trains has a trace of its own; the first one speaks for it.
    """
    started = [*spawned.traces.values()]
    if recorder.steps and started and all(map(_is_of_a_group, [recorder.trace, *started])):
        spawned.lead(recorder.trace)
    elif recorder.steps or not spawned.traces:
        spawned.traces.clear()
        first, *others = (each.trace for each in recorder.thread.recorders())
        traces = [first, *(other for other in others if _is_judgeable(order, other))]
        made = [other for other in others if int(str(other.conditions["steps"]))]
        unjudged = recorder.thread.uncounted + sum(other not in traces for other in made)
        if len(traces) > 1 and not any(isinstance(event, Step) for event in first):
            traces.pop(0)
        if unjudged:
            told = {**traces[0].conditions, "unjudged threads": unjudged}
            traces[0] = replace(traces[0], conditions=told)
        return _with_world(order, ranks.world()), *map(ranks.with_rank, traces)
    return _with_world(order, spawned.count), spawned.traces[min(spawned.traces)]


def _is_of_a_group(trace: Trace[Any]) -> bool:
    """Say whether a process has trained as one of several that have a model in common, perhaps."""
    return any(isinstance(event, ReplicaSums) for event in trace)


def _with_world(order: RunRequest, count: int) -> RunRequest:
    """Return the order for so many processes, as the script has told by now."""
    several = copy(order.subject)
    object.__setattr__(several, "ranks", count)  # it has been declared, and checked
    return replace(order, subject=several)


def _is_judgeable(order: RunRequest, trace: Trace[Any]) -> bool:
    """Say whether a thread has made steps that can be judged."""
    try:
        check_steps(order.subject, trace)
    except SubjectError:
        return False
    return True


def judge_threads(order: RunRequest, traces: list[Trace[Any]]) -> tuple[Verdict, ...]:
    """Judge the training of each thread by itself; of each invariant the worst verdict counts."""
    each = [_judge(order, trace) for trace in traces]
    return tuple(max(verdicts, key=_weigh) for verdicts in zip(*each, strict=True))


def _judge(order: RunRequest, trace: Trace[Any], *, joined: bool = False) -> tuple[Verdict, ...]:
    """Judge one trace; what one judgement fails at takes nothing from the others."""
    return judge_run(
        *(order.subject, trace, order.settings, order.command, SILENCE),
        joined=joined,
        survives=True,
    )


def _weigh(verdict: Verdict) -> tuple[bool, int, bool]:
    """Return how much a verdict says; an excuse that one thread needs is not stale."""
    return verdict.crash is not None, _WEIGHTS.index(verdict.outcome), bool(verdict.findings)


def threads_as_rows(traces: list[Trace[Any]]) -> list[tuple[str, str]]:
    """Return how many threads were judged, what they have made, and how many were not."""
    left = traces[0].conditions.get("unjudged threads", 0)
    why = "there were too many, or they had made too little or still trained at the end"
    rows = [("unjudged", f"{left} more threads that train: {why}")] if left else []
    if len(traces) == 1:
        return rows
    steps = sum(int(str(trace.conditions["steps"])) for trace in traces)
    told = f"{len(traces)} trained beside each other, and made {steps} steps; each was judged by"
    return [("threads", f"{told} itself, and the figures above are of the first"), *rows]


def ranks_as_rows(
    others: ranks.Others, size: int, own: Trace[Any] | None = None
) -> list[tuple[str, str]]:
    """Return how many of so many processes were judged together, and what became of others."""
    if size == 1:
        return []
    every = f"{size - len(others.missing)} of {size}" if others.missing else f"all {size}"
    traces = others.digests | ({ranks.rank(): own} if own is not None else {})
    stood = {n: str(trace.conditions.get("standing", "")) for n, trace in traces.items()}
    here = f"{Path.cwd()}{os.sep}"
    told = {n: f"stood at {place.removeprefix(here)}" for n, place in stood.items() if place}
    kinds: dict[str, list[int]] = {}
    for number, why in sorted({**told, **others.missing}.items()):
        kinds.setdefault(why, []).append(number)
    more = [("ranks", f"{ranks_text(numbers)}: {why}") for why, numbers in kinds.items()]
    return [("ranks", f"{every} processes were judged together"), *more]


def reports_of(verdicts: tuple[Verdict, ...]) -> ranks.Found:
    """Return the reports of what is broken, by the names of the invariants."""
    return {v.invariant.name: render_verdict(v) for v in verdicts if v.fails}


def judge_others(
    order: RunRequest,
    trace: Trace[Any],
    spawned: Any,
    verdicts: tuple[Verdict, ...],
    *,
    failed: bool,
    speaks: bool,
) -> tuple[tuple[Verdict, ...], ranks.Others]:
    """Leave what one process has found; in the one that speaks, judge what all others left too."""
    if spawned.traces:
        return _judge_spawned(order, spawned, verdicts)
    if ranks.world() == 1:
        return verdicts, ranks.Others()
    own = digest(trace, ranks.rank(), ranks.world())
    if not speaks:
        ranks.tell(reports_of(verdicts), own, order.baseline)
        return verdicts, ranks.Others()
    # Who waits for this process gets an error as it ends, and not before: that one tells of all.
    over = not failed and trace.conditions.get("ended") == "finished"
    others = ranks.gather(failed=failed, hands_over=over)
    if others.handed:
        ranks.tell(reports_of(verdicts), own, order.baseline)
        ranks.hand_over(others.handed)
        return verdicts, others
    order.baseline.see(others.known)
    return (*verdicts, *_judge_joined(order, own, others)), others


def _judge_spawned(
    order: RunRequest, spawned: Any, verdicts: tuple[Verdict, ...]
) -> tuple[tuple[Verdict, ...], ranks.Others]:
    """Judge the processes that a script has started itself, the first of them as verdicts say."""
    first, *later = spawned.traces
    others = ranks.Others()
    for each in later:
        trace = spawned.traces[each]
        alone = _judge(order, trace)
        crashes = [own.crash for own in alone]
        verdicts = tuple(
            replace(verdict, crash=verdict.crash or crash)
            for verdict, crash in zip(verdicts, crashes, strict=True)
        )
        others.found[each] = reports_of(tuple(map(order.baseline.hold, alone)))
        others.add(each, digest(trace, each, spawned.count))
    gone = set(range(spawned.count)) - set(spawned.traces)
    others.missing |= dict.fromkeys(gone, "it left no trace")
    own = digest(spawned.traces[first], first, spawned.count)
    return (*verdicts, *_judge_joined(order, own, others)), others


def _judge_joined(order: RunRequest, own: Trace[Any], others: ranks.Others) -> tuple[Verdict, ...]:
    """Judge what one process and the others have left."""
    own = share_columns(own, others.columns)
    joined = join([own, *others.digests.values()], others.missing)
    return tuple(map(order.baseline.hold, _judge(order, joined, joined=True)))
