"""Several processes of one run, judged together: those of a launcher, or those of the script."""

from copy import copy
from dataclasses import replace
from typing import Any

from trainguard.command import ranks
from trainguard.command.options import SILENCE
from trainguard.command.run_request import RunRequest
from trainguard.events.joined import digest, join, share_columns
from trainguard.events.trace import Trace
from trainguard.judging.judge import judge_run
from trainguard.judging.verdict import Verdict
from trainguard.report.text import render_verdict


def choose_trace(order: RunRequest, recorder: Any, spawned: Any) -> tuple[RunRequest, Trace[Any]]:
    """Return what is judged: this process, or where it made no step the first that it started."""
    if recorder.steps or not spawned.traces:
        spawned.traces.clear()
        return order, ranks.with_rank(recorder.trace)
    several = copy(order.subject)
    object.__setattr__(several, "ranks", spawned.count)  # it has been declared, and checked
    return replace(order, subject=several), spawned.traces[min(spawned.traces)]


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
) -> tuple[tuple[Verdict, ...], ranks.Others]:
    """Leave what one process has found; in the first one, judge it with what the others left."""
    if spawned.traces:
        return _judge_spawned(order, spawned, verdicts)
    if ranks.world() == 1:
        return verdicts, ranks.Others()
    own = digest(trace, ranks.rank(), ranks.world())
    if ranks.rank():
        ranks.tell(reports_of(verdicts), own, order.baseline)
        return verdicts, ranks.Others()
    others = ranks.gather(failed=failed)
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
        alone = judge_run(order.subject, trace, order.settings, order.command, SILENCE)
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
    more = judge_run(order.subject, joined, order.settings, order.command, SILENCE, joined=True)
    return tuple(map(order.baseline.hold, more))
