"""Several processes of one run: what each tells of itself, and all of it brought together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import isnan
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from trainguard.events.loop import Evaluation, Scheduler, Step
from trainguard.events.ranks import (
    GroupCalls,
    RankCourse,
    RankEvaluations,
    RankRun,
    Reduction,
    ReplicaSums,
    SavedFile,
    SavedShards,
    ServedSamples,
    SplitSamples,
    WorldRun,
    write_sums,
)
from trainguard.events.trace import Trace

_EVALUATIONS = 256  # of a module, that are told
_COMPARED = 64  # steps of runs of several numbers of processes
_SHARED = (
    "names",
    "replicas",
    "sharded",
    "lone",
    "exchanged",
    "draws",
    "begun",
    "buffers",
    "states",
    "shares",
    "sizes",
    "tensor",
)


def digest(trace: Trace[Any], rank: int, world: int) -> Trace[Any]:
    """Return what one process tells the others of its run: columns of steps, and sums."""
    steps: dict[str, list[Step]] = {}
    for event in trace:
        if isinstance(event, Step):
            steps.setdefault(event.optimizer, []).append(event)
    sums = {event.optimizer: event for event in trace if isinstance(event, ReplicaSums)}
    told = {e.optimizer: e for e in trace if isinstance(e, Scheduler) and e.metrics}
    own = (SavedFile, SavedShards, ServedSamples, SplitSamples, GroupCalls, Reduction)
    more = [replace(event, rank=rank) for event in trace if isinstance(event, own)]
    made = sum(step.span for course in steps.values() for step in course)
    ended = str(trace.conditions.get("ended", "finished"))
    stood = str(trace.conditions.get("standing", ""))
    run = RankRun(rank=rank, world=world, steps=made, ended=ended, standing=stood)
    courses = [_course(rank, its, sums.get(name), told.get(name)) for name, its in steps.items()]
    events = run, *courses, *_evaluations(trace, rank), *more
    return Trace(trace.subject, events, trace.conditions, trace.promises)


def share_columns(digest: Trace[Any], known: dict[Any, Any]) -> Trace[Any]:
    """
    Return a digest whose columns are those of an earlier one where they are equal.

    So thousands of replicas take hardly more memory than one, if each is shared as it arrives.
    """
    return replace(digest, events=tuple(_share(event, known) for event in digest))


def join(
    digests: Iterable[Trace[Any]], missing: Mapping[int, str] = MappingProxyType({})
) -> Trace[Any]:
    """Return one trace of what several processes told; those that told nothing are named."""
    events: list[Any] = []
    first: Trace[Any] | None = None
    for each in digests:
        first = first or each
        events += each
    world = max((event.world for event in events if isinstance(event, RankRun)), default=1)
    events += [RankRun(rank=rank, world=world, missing=why) for rank, why in missing.items()]
    events.sort(key=lambda event: event.rank)
    if first is None:
        return Trace("", tuple(events))
    return Trace(first.subject, tuple(events), first.conditions, first.promises)


def add_up_world(traces: Sequence[Trace[Any]]) -> Iterator[WorldRun]:
    """Yield what the processes of one run come to together, for each optimizer."""
    own: dict[str, list[list[Step]]] = {}
    for trace in traces:
        steps: dict[str, list[Step]] = {}
        for event in trace:
            if isinstance(event, Step):
                steps.setdefault(event.optimizer, []).append(event)
        for name, made in steps.items():
            own.setdefault(name, []).append(made[:_COMPARED])
    for name, each in own.items():
        rows = list(zip(*each, strict=False))
        known = [
            all(min(s.batch, default=0) > 0 and len(s.batch) == len(s.losses) for s in row)
            for row in rows
        ]
        yield WorldRun(
            world=len(traces),
            optimizer=name,
            samples=tuple(
                sum(sum(s.batch) for s in row) * told for row, told in zip(rows, known, strict=True)
            ),
            losses=tuple(fmean(s.loss for s in row) for row in rows),
            norms=tuple(row[0].norm for row in rows),
            source=each[0][0].source,
        )


def _evaluations(trace: Trace[Any], rank: int) -> Iterator[RankEvaluations]:
    """Yield the losses of the evaluations of each module."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for event in trace:
        if isinstance(event, Evaluation) and not event.routine:
            loss = event.loss if isnan(event.weighted) else event.weighted
            if not isnan(loss):
                found.setdefault((event.module, event.source), []).append((event.step, loss))
    for (module, source), made in found.items():
        steps, losses = zip(*made[:_EVALUATIONS], strict=True)
        yield RankEvaluations(rank=rank, module=module, source=source, steps=steps, losses=losses)


def _course(
    rank: int, steps: list[Step], summed: ReplicaSums | None, told: Scheduler | None
) -> RankCourse:
    """Return the steps of one optimizer as columns."""
    made = [step for step in steps if not step.skipped]
    course = RankCourse(
        rank=rank,
        optimizer=steps[0].optimizer,
        source=steps[0].source,
        made=sum(step.span for step in made),
        steps=tuple(step.step for step in steps),
        rates=tuple(step.rates for step in steps),
        norms=tuple(step.norm for step in steps),
        updates=tuple(step.update for step in steps),
        scales=tuple(step.scale for step in steps),
        fingerprints=tuple(step.fingerprints for step in steps),
        waiting=_waiting(steps[1:]),
        metrics=tuple(metric for _, metric in told.metrics) if told is not None else (),
        metric=told.expression if told is not None else "",
    )
    if summed is None:
        return course
    shared = {name: getattr(summed, name) for name in _SHARED}
    sums = tuple(map(write_sums, summed.sums))
    losses = tuple(step.loss for step in steps) if summed.tensor else ()
    return replace(course, looks=summed.steps, sums=sums, losses=losses, **shared)


def _waiting(steps: Sequence[Step]) -> float:
    """Return the share of the time that steps wait for data, in the median."""
    shares = [s.wait / s.seconds for s in steps if s.seconds and not isnan(s.wait)]
    return median(shares) if shares else 0.0


def _share(event: Any, known: dict[Any, Any]) -> Any:
    """Return an event whose tuples are those of an earlier one where they are equal."""
    tuples = {f.name: v for f in fields(event) if type(v := getattr(event, f.name)) is tuple}
    return replace(event, **{name: known.setdefault(v, v) for name, v in tuples.items()})
