"""Judgements of what replicas decide: to lower a rate, which model is the best, when to stop."""

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import list_words, number, portion, ranks_text
from trainguard.events.ranks import RankEvaluations, SavedFile
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import (
    ROUNDING,
    ReplicaGroup,
    evidence,
    partings,
    ranks_of,
    replicas,
    runs,
    spread,
)

_FEW = 3  # evaluations of which the best one is no chance where two processes choose another
_SOME = 6  # the same of one process, of which
_LEFT = 2  # and more are saved, and as many are not
_TOLD = 2  # processes, of which each is told when it saves
_SHOWN = 4  # steps of each
_WHY = (
    "it is of one process's share of the data: dist.all_reduce it, or broadcast it from one process"
)


def _lacks_decisions(trace: Trace[Any]) -> str:
    """Return why nobody decides by a number of its own."""
    groups = list(replicas(trace))
    told = any(sum(bool(course.metrics) for course in group.courses) > 1 for group in groups)
    saved = any(isinstance(event, SavedFile) for event in trace)
    chosen = saved and any(_evaluated(trace, group) for group in groups)
    missing = "no two replicas tell a scheduler a metric, or evaluate and save what they train"
    return evidence(trace) or ("" if told or chosen else missing)


@invariant("ranks", evidence=_lacks_decisions)
def decisions_are_shared(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas base scheduling and checkpointing decisions on the same metric values.

    Judges: what each process tells its scheduler (ReduceLROnPlateau), time after time, in processes
        that are replicas and made equally many steps: a note as long as the rates are alike.
        Of processes that evaluate the same model to different losses, the files that each saves
        exactly when its own loss is the lowest so far: broken where several so save one file, a
        note where they save several, or one process alone does so and the mean loss says otherwise.
        A note of a process that leaves earlier than others right after such an evaluation.
    Allows: a part in 1e4, as roundings make it. A scheduler that one process alone has told.
    Misses: decisions by other numbers than a loss; of fewer than 3 evaluations.
    Why: the loss of a process's own share sinks when that of another does not; from the first
        decision that differs each process follows a plan of its own.
    Source: post-mortems, row D8; the documentation of Lightning's `sync_dist`.
    """
    for group in replicas(trace):
        if group.in_step:
            yield from _find_metrics(trace, group)
            yield from _find_choices(trace, group)
        yield from _find_leaving(trace, group)


def _find_metrics(trace: Trace[Any], group: ReplicaGroup) -> Iterator[Finding]:
    """Yield a finding of schedulers that are told different numbers."""
    courses = [course for course in group.courses if course.metrics]
    if len(courses) < 2 or len({len(course.metrics) for course in courses}) > 1:
        return
    places, length = partings(courses, attrgetter("metrics"))
    apart = [i for i in places if spread([c.metrics[i] for c in courses]) > ROUNDING]
    if apart:
        first = [course.metrics[apart[0]] for course in courses]
        parted, _ = partings(group.courses, attrgetter("rates"))
        yield Finding(
            f"the replicas of `{trace.subject}` decide by different numbers",
            f"{courses[0].metric or 'the metric'} of {group.optimizer}'s scheduler, "
            + ranks_text(ranks_of(courses)),
            portion(len(apart), length, "times")
            + f", first {number(min(first))} and {number(max(first))}",
            "one number, which all processes have",
            why=_WHY,
            rank=Rank.BROKEN if parted else Rank.NOTE,
            source=courses[0].source,
        )


def _find_choices(trace: Trace[Any], group: ReplicaGroup) -> Iterator[Finding]:
    """Yield a finding of files that processes save when their own loss is the lowest so far."""
    made = [(own, {one.rank: one for one in own}) for own in _evaluated(trace, group)]
    pairs = [(own, saved) for own, ranks in made for saved in _alike_files(trace, ranks)]
    own, chosen = next((pair for pair in pairs if _is_own_choice(*pair)), ([], []))
    if chosen:
        told = [f"rank {one.rank} after {_first_of(one.steps)} steps" for one in chosen[:_TOLD]]
        same = len(chosen) > 1 and len({(one.folder, one.name) for one in chosen}) == 1
        yield Finding(
            f"the replicas of `{trace.subject}` choose the best model by different numbers",
            f"{chosen[0].name}, {ranks_text([one.rank for one in chosen])}",
            portion(len({*chosen[0].steps}), len(own[0].steps), "evaluations")
            + f" were followed by a save, as the loss was the lowest: {', '.join(told)}",
            "one number, which all processes have",
            why=_WHY,
            rank=Rank.BROKEN if same else Rank.NOTE,
            source=chosen[0].source,
        )


def _is_own_choice(own: Sequence[RankEvaluations], saved: Sequence[SavedFile]) -> bool:
    """Say whether processes save as the loss of each is the lowest, and not that of all."""
    steps, losses = own[0].steps, {one.rank: one.losses for one in own}
    chosen = [{*one.steps} for one in saved]
    if len(steps) < _FEW or chosen != [_lowest(steps, losses[one.rank]) for one in saved]:
        return False
    if len(chosen) > 1:
        return any(other != chosen[0] for other in chosen)
    means = [fmean(row) for row in zip(*losses.values(), strict=True)]
    some = len(steps) >= _SOME and _LEFT <= len(chosen[0]) <= len(steps) - _LEFT
    return some and chosen[0] != _lowest(steps, means)


def _find_leaving(trace: Trace[Any], group: ReplicaGroup) -> Iterator[Finding]:
    """Yield a note of a process that leaves earlier than others after an evaluation of its own."""
    made = {run.rank: run.steps for run in runs(trace) if run.ended == "finished"}
    most = max((run.steps for run in runs(trace)), default=0)
    waits = any(run.standing and run.ended == "failed" for run in runs(trace))
    for own in _evaluated(trace, group):
        gone = [e for e in own if e.rank in made and (waits or made[e.rank] < most)]
        left = [e for e in gone if e.steps[-1] == made[e.rank]]
        if left:
            place = len(left[0].steps) - 1
            values = [one.losses[place] for one in own if len(one.losses) > place]
            yield Finding(
                f"the replicas of `{trace.subject}` decide by different numbers",
                f"the evaluation after {left[0].steps[-1]} steps, {ranks_text([left[0].rank])}",
                f"it left then; losses were {number(min(values))} to {number(max(values))}",
                "one number, which all processes have",
                why=_WHY,
                rank=Rank.NOTE,
                source=left[0].source,
            )
            return


def _evaluated(trace: Trace[Any], group: ReplicaGroup) -> list[list[RankEvaluations]]:
    """Return evaluations that all of some replicas make at the same steps, to other losses."""
    ranks, found = set(ranks_of(group.courses)), dict[tuple[str, str], list[RankEvaluations]]()
    for event in trace:
        if isinstance(event, RankEvaluations) and event.rank in ranks:
            found.setdefault((event.module, event.source), []).append(event)
    return [own for own in found.values() if len(own) == len(ranks) and _differ(own, group)]


def _differ(own: Sequence[RankEvaluations], group: ReplicaGroup) -> bool:
    """Say whether processes find other losses at the same steps, those that all have reached."""
    least = min(len(one.steps) for one in own)
    steps = {one.steps[:least] for one in own}
    if len(steps) > 1 or not least or (group.in_step and len({len(o.steps) for o in own}) > 1):
        return False
    rows = zip(*(one.losses for one in own), strict=False)
    return any(spread([*row]) > ROUNDING for row in rows)


def _alike_files(trace: Trace[Any], ranks: dict[int, Any]) -> list[list[SavedFile]]:
    """Return the files of some processes whose names are alike, but for numbers in them."""
    files: dict[str, list[SavedFile]] = {}
    for event in trace:
        if isinstance(event, SavedFile) and event.rank in ranks:
            files.setdefault(re.sub(r"\d+", "", event.name), []).append(event)
    return [own for own in files.values() if len({one.rank for one in own}) == len(own)]


def _lowest(steps: Sequence[int], losses: Sequence[float]) -> set[int]:
    """Return the steps at which a loss was lower than ever before."""
    return {step for i, step in enumerate(steps) if all(losses[i] < loss for loss in losses[:i])}


def _first_of(steps: Sequence[int]) -> str:
    """Write the first of some numbers of steps."""
    return list_words([str(step) for step in sorted({*steps})[:_SHOWN]])
