"""Judgements of gradient clipping: whether it does what it says, and is the exception."""

from collections.abc import Iterator
from math import isfinite, sqrt

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Measure, integer, join_places
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import CLIPPING
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    last_word,
    middle,
    most_of,
    percent,
    tally,
)
from trainguard.invariants.wording import number

_EXCEEDS = 2.0
_CLEARLY = 1.02  # a norm in bfloat16 is right to 0.003
_SHORT, _FAR, _DROWNED = 100, 10.0, 100.0
_SCALED, _SCALED_FAR = 0.01, 0.05  # of a scaler's factor; where it takes nine tenths away

# What was done, and why that may have happened.
_FAULTS = {
    "empty": (
        "clips gradients that are not there",
        "it may be called before backward, or after step or zero_grad",
    ),
    "no parameters": (
        "clips no parameter at all",
        "parameters() is a generator, which is empty once something went through it",
    ),
    "scaled": (
        "clips gradients that are still scaled",
        "call scaler.unscale_(optimizer) before clipping",
    ),
    "partial": (
        "clips a part of its gradients only",
        "clipping may be given one module's parameters instead of the model's",
    ),
    "undone": (
        "makes its steps with other gradients than it clipped",
        "perhaps a backward pass comes after clipping, or clipping does not work in place",
    ),
}

_BINDING = (
    (
        "`{}` is clipped in nearly every step",
        "the limit has taken the place of the rate: each step is of the same length",
    ),
    (
        "clipping takes nearly all of the gradients of `{}` away",
        "the gradients are of another size than the limit: look at the loss's scale first",
    ),
)


@invariant("loop", evidence=CLIPPING, live=SOON)
def clipping_takes_effect(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradient clipping bounds the unscaled gradients that the optimizer step uses.

    Judges: what clipping saw, in more than half of the steps that clip: gradients at all, all of
        them, unscaled, and those that the step was then made with. And whether a line that clips
        ever meets gradients that came since the last step, in 10 calls or more.
    Allows: clipping in several calls that cover everything. Clipping of a part where the rest is
        small, has no matrix, or the norm stays within 2 (limit) times what clipping allowed.
        Scaled gradients whose limit is scaled too: above 0.01 of the scaler's factor, or 0.05 where
        it takes nine tenths of a gradient away.
    Misses: clipping that is skipped for other models or modes than the one that was run; a part
        that is left out and small in the recorded steps; hand-written clipping.
    Why: the order is backward, unscale, clip, step: in any other, clipping does nothing, or takes
        almost everything away, and nothing complains.
    Source: pytorch.org/docs/stable/notes/amp_examples.html.
    """
    told = set()
    for course in courses(trace):
        clips = [s for s in course.steps if s.clip]
        for kind in _FAULTS:
            bad = [s for s in clips if _fault(trace, course, s) == kind]
            if most_of(bad, clips):
                yield (finding := _clips_wrongly(trace, course, kind, bad, clips))
                told.add(finding.source)
    for probe in events(trace, Probe):
        if probe.probe == "idle clip" and probe.source not in told:
            yield Finding(
                f"gradient clipping in `{trace.subject}` never finds new gradients to clip",
                "",
                integer(probe.measured, "calls") + " found none since the last step",
                "gradients of the next step",
                why="it may be given the parameters of another model than the one that is to step",
                event=probe,
            )


def _fault(trace: Trace[Event], course: Course, step: Step) -> str:
    """Return what is wrong with the clipping of one step; nothing where it takes effect."""
    if step.clip == "partial":
        return "partial" if _exceeds(trace, step) else ""
    if step.clip == "empty" and not course.alone and not step.received:
        return ""  # the gradients of this step are another optimizer's
    if step.clip in ("empty", "no parameters"):
        return step.clip
    if not isfinite(step.clip_limit) and step.clip_limit > 0:
        return ""  # an infinite limit measures, and is meant to change nothing
    if step.clip == "scaled" or (course.alone and _before(step, "unscale")):
        return "scaled" if step.scale != 1 and not _has_scaled_limit(step) else ""
    late = course.alone and _before(step, "backward") and step.norm > _CLEARLY * step.clip_limit
    return "undone" if step.clip == "undone" or late else ""


def _has_scaled_limit(step: Step) -> bool:
    """Say whether a limit may be meant for scaled gradients, by its size and its effect."""
    binds = step.norm_before >= _FAR * step.clip_limit
    return step.clip_limit > (_SCALED_FAR if binds else _SCALED) * step.scale


def _before(step: Step, word: str) -> bool:
    """Say whether the last clipping of a step came before the last of something else."""
    return 0 <= last_word(step, "clip") < last_word(step, word)


def _exceeds(trace: Trace[Event], step: Step) -> bool:
    """Say whether what clipping did not see takes the step clearly above the limit."""
    most = trace.limit("clipping_takes_effect", _EXCEEDS) * step.clip_limit
    missed = step.norm_before * sqrt(max(0.0, 1 - step.clip_share))
    return step.norm > most and not missed < most


def _clips_wrongly(
    trace: Trace[Event], course: Course, kind: str, bad: list[Step], clips: list[Step]
) -> Finding:
    """Return the finding for one kind of clipping without effect."""
    what, why = _FAULTS[kind]
    step = bad[0]
    partial = kind == "partial"
    most = trace.limit("clipping_takes_effect", _EXCEEDS)
    return Finding(
        f"`{trace.subject}` {what}",
        join_places(course.at(step), step.unclipped if partial else ""),
        "norm " + number(middle(s.norm for s in bad)) + f" in the step, {tally(bad, clips)}"
        if partial
        else tally(bad, clips),
        Measure(f"at most {number(most)} times {number(step.clip_limit)}", most * step.clip_limit)
        if partial
        else Measure(f"at most half of {count(clips)} steps", count(clips) / 2, "steps"),
        why=why,
        event=step,
        source=step.clip_source or step.source,
    )


@invariant("loop", evidence=CLIPPING)
def clipping_is_rare(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradient clipping affects exceptional steps, not nearly all of them.

    Judges: where gradients were clipped to a finite norm in at least 10 steps, how often the norm
        was above it before.
    Allows: 90 % (limit) of the steps. In fewer than 100 steps also a median norm up to 10 times
        the allowed one, as many runs begin. What is found is a note.
    Misses: clipping by value, and by several calls.
    Why: where every step is clipped, each has the same length whatever the gradient says, and one
        part with huge gradients leaves nothing for the others.
    Source: Pascanu et al., On the difficulty of training recurrent neural networks (arXiv
        1211.5063), section 3.2: the limit is chosen by the average norm.
    """
    least = trace.limit("clipping_is_rare", 0.9)
    for course in courses(trace):
        clips = [s for s in course.steps if s.clip == "taken" and _has_limit_and_norm(s)]
        bound = [s for s in clips if _binds(s)]
        if len(clips) < 10 or not count(bound) > least * count(clips):
            continue
        ratio = middle(s.norm_before / s.clip_limit for s in bound)
        if ratio < _FAR and count(clips) < _SHORT:
            continue
        what, why = _BINDING[ratio >= _DROWNED]
        yield note(
            what.format(trace.subject),
            course.at(bound[0]),
            percent(count(bound) / count(clips))
            + f" of steps, median norm {number(ratio)} times the limit",
            "at most " + percent(least) + " of steps",
            why=why,
            event=bound[0],
            source=bound[0].clip_source or bound[0].source,
        )


def _has_limit_and_norm(step: Step) -> bool:
    """Say whether both the limit and the norm before clipping are known."""
    return isfinite(step.clip_limit) and step.clip_limit > 0 and isfinite(step.norm_before)


def _binds(step: Step) -> bool:
    """Say whether a step was clipped by its norm: it was above the limit, and is at it now."""
    clipped = abs(step.norm - step.clip_limit) <= (_CLEARLY - 1) * step.clip_limit
    return step.norm_before > step.clip_limit and clipped
