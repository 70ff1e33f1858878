"""Judgements of the gradients that steps are made with: finite, fresh, and there at all."""

import re
from collections.abc import Iterator
from itertools import takewhile
from math import inf, isfinite, isinf, isnan
from pathlib import Path

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, integer, join_places, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter, Read, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import GRADIENTS, READS, steps_from
from trainguard.invariants.loop.losses.causes import (
    tell_of_limits,
    tell_of_nonfinite,
    tell_of_rate,
    tell_of_start,
)
from trainguard.invariants.loop.losses.loss import has_nonfinite_loss
from trainguard.invariants.loop.wording import (
    LEFT_OVER,
    Course,
    count,
    courses,
    events,
    first,
    in_line,
    last_word,
    line_of_origin,
    line_of_steps,
    middle,
    most_of,
    stale_steps,
    tally,
)
from trainguard.invariants.wording import number

_NEVER = 5  # steps without any gradient: a first phase may leave out one or two
_DEAD = 20  # steps in a row in which no weight gets a gradient that is not zero
_FOR_GOOD = 40  # skipped steps in a row: a factor of 2**24 is down to 2**-16 by then
_ROOM = 64  # letters of a line of code, beside its place
_ANOTHER_MODEL = (
    "the loss goes to parameters that it does not hold: those of another model, or of one that was"
    " replaced or copied after the optimizer was made"
)
_GUARDED = 3  # steps
_NO_GRAPH = (
    "the loss that should train it is computed from a copy of its output that has no graph:"
    " .detach(), .data, .item(), numpy, or under torch.no_grad()"
)
_ROOT = "has an infinite slope at 0: add a small number to what it is taken of"
_ARC = "has an infinite slope at 1 and -1: clamp what it is taken of a little inside of them"
_SLOPES = {"acos": _ARC, "asin": _ARC, "pow": _ROOT, "sqrt": _ROOT}
_EDGE = (
    "has an infinite slope at 0, which times the 0 of what is left out is no number: clamp what it"
    " is taken of, before torch.where or a mask leaves it out"
)
_WRITES = re.compile(r"zero_\(|zeros|=\s*None\b|\bdel\b|zero_grad")


@invariant("loop", evidence=GRADIENTS, live=1)
def gradients_are_finite(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The gradients of every step are finite.

    Judges: the global norm of the gradients that a step was made with, up to the first loss that
        is not finite, which loss_is_finite has. Gradients that are not finite after the pass
        backward, and are at the step, in 3 or more, and in half of the steps looked at.
    Allows: a guard that replaces what is not finite now and then; steps that a gradient scaler
        skipped, also where an optimizer skips them by itself: the next gradients are then finite.
        Not 40 skipped ones in a row to the end.
    Misses: gradients that are not finite and that no optimizer used.
    Why: the loss of that step is still a number; the next one, and every one after it, is not.
    Source: pytorch/pytorch issue 10729.
    """
    end = min(
        (s.clock for s in events(trace, Step) if has_nonfinite_loss(s) and not s.skipped),
        default=inf,
    )
    for course in courses(trace):
        judged = [s for s in course.steps if s.clock <= end and not has_nonfinite_loss(s)]
        step = next((s for s in judged if _unsound(s) and not _left_out(course, s)), None)
        if step is not None:
            yield Finding(
                f"the gradients of `{trace.subject}` are not finite",
                course.at(step),
                "norm " + number(step.norm),
                "finite",
                why=_explain(trace, step),
                event=step,
            )
        else:
            yield from _skipped_for_good(trace, course)
    for probe in events(trace, Probe):
        if probe.probe == "replaced" and probe.measured >= max(_GUARDED, probe.reference / 2):
            left = "zeros" if probe.label else "other numbers"
            yield Finding(
                f"the gradients of `{trace.subject}` are not finite, and are replaced",
                "between the pass backward and the step",
                portion(probe.measured, probe.reference, "steps")
                + f" were made with {left} in their place",
                "a few of many",
                why=_explain_places(trace),
                event=probe,
            )


def _explain(trace: Trace[Event], step: Step) -> str:
    """Say which value was not finite first, and what may have made it so."""
    return _explain_places(trace, *tell_of_nonfinite(trace, step))


def _explain_places(trace: Trace[Event], *known: str) -> str:
    """Say what may have made gradients infinite, after what is known."""
    told = list(known)
    steep = [probe for probe in events(trace, Probe) if probe.probe == "steep"]
    for probe in steep:
        slope = _SLOPES.get(probe.label, _EDGE)
        told.append(f"`{probe.label}` at {Path(probe.source).name} {slope}")
    return "; ".join(told) or (
        "perhaps a torch.where branch that was not taken, or a norm or root at zero"
    )


def _unsound(step: Step) -> bool:
    """Say whether the gradients of a step are known and no numbers; nan alone may be unknown."""
    seen = bool(step.culprit) or not all(isfinite(norm) for _, norm, _ in step.layers)
    return isinf(step.norm) or (isnan(step.norm) and seen)


def _left_out(course: Course, step: Step) -> bool:
    """Say whether a scaler is there and the next step is sound: this one changed nothing."""
    scaled = step.scale != 1 or any(s.skipped for s in course.every)
    after = first(course.steps, lambda s: s.step > step.step)
    return scaled and after is not None and isfinite(after.norm)


def _skipped_for_good(trace: Trace[Event], course: Course) -> Iterator[Finding]:
    """Yield a finding where all last steps were skipped though their loss was finite."""
    ending = tuple(
        takewhile(lambda s: s.skipped and not has_nonfinite_loss(s), reversed(course.every))
    )
    if count(ending) >= _FOR_GOOD:
        yield Finding(
            f"the gradients of `{trace.subject}` are never finite again and its steps are skipped",
            course.at(ending[-1]) + " and all after it",
            integer(count(ending), "steps") + " skipped in a row",
            Measure(f"fewer than {_FOR_GOOD}", _FOR_GOOD, "steps"),
            why=f"the first value that is not finite: {ending[-1].culprit}"
            if ending[-1].culprit
            else "a scaler would have found its scale by now: the run learns nothing more",
            event=ending[-1],
        )


@invariant("loop", evidence=steps_from(2), live=SOON)
def gradients_start_empty(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The gradients of one step are cleared before the backward pass of the next.

    Judges: what was there when the first backward pass after a step arrived, in each step but the
        first of each optimizer.
    Allows: leftovers in half of the steps, or up to 0.001 (limit) of the norm of the step.
    Misses: gradients that another optimizer's loss left behind and that no step has used.
    Why: without zero_grad each step is made with the sum of all gradients so far; the loss falls
        all the same, for a while.
    Source: the pitfall that every tutorial of PyTorch names.
    """
    least = trace.limit("gradients_start_empty", LEFT_OVER)
    for course in courses(trace):
        stale = stale_steps(course, least)
        if not stale:
            continue
        later = [step for step in course.every[1:] if not step.skipped]
        shares = middle(s.leftover / s.norm for s in stale if s.norm > 0)
        yield Finding(
            f"`{trace.subject}` steps with gradients that the last step had already used",
            join_places(course.at(stale[0]), stale[0].leftover_name),
            number(shares) + f" of the step's gradient norm, in {tally(stale, later)}"
            if isfinite(shares)
            else number(stale[0].leftover) + f" left over, in {tally(stale, later)}",
            "at most " + number(least) + " of it",
            why="zero_grad may be missing, come between backward and step, or be that of another"
            " optimizer or model",
            event=stale[0],
        )


@invariant("loop", evidence=READS)
def gradient_norm_is_measured_before_zeroing(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradients are read before they are cleared.

    Judges: each line that read gradients in at least 2 steps, always after they had been cleared.
    Allows: lines that assert something, and those that clear or create gradients themselves. A
        note where the line only asks whether they are missing.
    Misses: a line that sees them at other times too, in another call of the same function.
    Why: a norm that is taken after zero_grad is 0.0 for ever, and the explosion that it should
        have shown is not seen.
    Source: Lightning-AI/pytorch-lightning issue 272.
    """
    for read in events(trace, Read):
        if read.full or read.empty < 2 or "assert" in read.code or _WRITES.search(read.code):
            continue
        asks = re.fullmatch(r"\s*(if|elif|while)\b[^:]*\bis None\s*:\s*(continue)?\s*", read.code)
        yield Finding(
            f"`{trace.subject}` reads gradients after they are cleared",
            _cut(read.code.strip().partition("\n")[0]) or read.source,
            "gradients at " + portion(0, read.empty, "reads"),
            "at least " + portion(1, read.empty),
            why="a norm or a histogram that is taken after zero_grad is zero or nothing: take it"
            " before" + in_line(read.called),
            rank=Rank.NOTE if asks else Rank.BROKEN,
            event=read,
        )


def _cut(line: str) -> str:
    """Return a line of code, or as much of it as a report has room for."""
    return line if len(line) <= _ROOM else f"{line[: _ROOM - 4].rstrip()} ..."


@invariant("loop")
def gradient_norm_is_positive(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The gradients of a step are not all zero.

    Judges: the global norm in the steps that backward ran for; optimizers that make 5 steps or
        more and hold frozen parameters only; those beside others that make 20 or more and whose
        parameters, all of modules that are called where something is learned, never get a
        gradient; those whose gradients are cleared before each of their steps; those that are
        alone while all gradients go to what they do not hold; models
        whose first weights, half of all or more, had a gradient once and get zeros in the last 20
        steps while the rest learns on.
    Allows: zeros in half of the steps (an advantage of zero); where a loss is exactly zero, as
        when every margin is kept; in a single step; steps of one of several optimizers that no
        gradient was meant for, where others of its steps have some; parameters that move without
        a gradient, as in an evolution strategy. An optimizer of frozen parameters beside others
        that step is a note.
    Misses: parts of a model whose gradient is zero while weights of another part learn.
    Why: zero_grad between backward and step, a clamp that is always active or units that are all
        dead leave a run that only pretends.
    Source: Lu et al., Dying ReLU and Initialization (arXiv 1903.06733);
        discuss.pytorch.org topic 84911 (the head frozen with the rest).
    """
    yield from _find_dead_models(trace)
    # What requires no gradient and moves nevertheless is given one that was found by other means.
    given = any(p.held and p.moved and not p.trainable for p in events(trace, Parameter))
    idle = sum(1 for p in events(trace, Parameter) if _is_idle(p))
    left_out = any(p.received and p.trainable and not p.held for p in events(trace, Parameter))
    replaced = any(p.probe == "replaced" and p.label for p in events(trace, Probe))
    for course in courses(trace):
        if _is_frozen(course):
            if not given:
                yield _make_frozen_finding(trace, course)
            continue
        ran = [s for s in course.steps if s.losses or "backward" in s.order]
        cleared = [s for s in ran if _is_cleared(s, course)]
        dead = [s for s in ran if s.norm == 0 and s.received and 0.0 not in s.losses]
        if most_of(cleared, ran):
            yield _nothing_left(trace, course, cleared, ran)
        elif _is_unreached(course, idle, left_out):
            yield _make_unreached_finding(trace, course)
        elif len(ran) > 1 and most_of(dead, ran):
            yield Finding(
                f"the gradients of `{trace.subject}` are zero",
                course.at(dead[0]),
                "norm " + integer(0) + f" in {tally(dead, ran)}",
                "above " + integer(0),
                why="what was not finite in them was replaced by zeros before the step"
                if replaced
                else tell_of_limits(trace)
                or "perhaps a clamp that is always active, dead units, or a factor of zero",
                event=dead[0],
            )


def _is_cleared(step: Step, course: Course) -> bool:
    """Say whether the gradients of a step were cleared after its last backward pass."""
    late = last_word(step, "zero") > last_word(step, "backward") >= 0
    nothing = step.norm == 0 or (isnan(step.norm) and not step.received)
    # One of several is stepped where no gradient was meant for it, but not always.
    meant = course.alone or step.received > 0 or (step.thrown > 0 and not _is_given(course))
    return late and nothing and meant and step.held > 0


def _is_given(course: Course) -> bool:
    """Say whether an optimizer makes a step with gradients, once at least."""
    return any(step.received for step in course.every)


def _nothing_left(
    trace: Trace[Event], course: Course, cleared: list[Step], ran: list[Step]
) -> Finding:
    """Return the finding for gradients that are cleared before they are used."""
    return Finding(
        f"the gradients of `{trace.subject}` are cleared before the step that should use them",
        course.at(cleared[0]),
        "norm " + integer(0) + f" in {tally(cleared, ran)}",
        "above " + integer(0),
        why="zero_grad comes between backward and step",
        event=cleared[0],
    )


def _is_frozen(course: Course) -> bool:
    """Say whether an optimizer steps all the time with parameters that require no gradient."""
    empty = all(s.norm == 0 and not (s.held or s.received or s.update > 0) for s in course.steps)
    return empty and not course.by_hand and count(course.steps) >= _NEVER


def _is_idle(parameter: Parameter) -> bool:
    """Say whether a parameter is to learn, is used where something learns, and never does."""
    learns = parameter.trainable and parameter.held and parameter.called and not parameter.copy
    return learns and parameter.received == 0 and not parameter.moved


def _is_unreached(course: Course, idle: int, left_out: bool) -> bool:
    """
    Say whether an optimizer steps all the time, and no gradient is meant for what it holds.

    Of one that is alone, all gradients go to what it has left out; beside others, all that it holds
    may well be idle.
    """
    nothing = all(not (s.received or s.norm > 0 or s.update > 0) for s in course.steps)
    held = max((s.held for s in course.steps), default=0)
    missed = left_out if course.alone else held <= idle
    return nothing and held > 0 and missed and not course.by_hand and count(course.steps) >= _DEAD


def _make_unreached_finding(trace: Trace[Event], course: Course) -> Finding:
    """Return the finding about an optimizer whose parameters no loss depends on."""
    return Finding(
        f"no gradient ever reaches the parameters of an optimizer of `{trace.subject}`",
        course.optimizer,
        integer(0, "gradients") + f" in {count(course.steps)} steps",
        integer(1) + " or more",
        why=_ANOTHER_MODEL if course.alone else _NO_GRAPH,
        event=course.steps[0],
        source=line_of_origin(trace, course.optimizer) or course.steps[0].source,
    )


def _make_frozen_finding(trace: Trace[Event], course: Course) -> Finding:
    """Return the finding about an optimizer that has nothing to train."""
    step, last = course.steps[0], course.steps[-1]
    beside = any(
        s.optimizer != course.optimizer and step.clock < s.clock < last.clock
        for s in events(trace, Step)
    )
    return Finding(
        f"an optimizer of `{trace.subject}` holds frozen parameters only",
        course.optimizer,
        integer(0, "gradients") + f" in {count(course.steps)} steps",
        integer(1) + " or more",
        why="perhaps the loop that freezes the model also freezes what is to be trained",
        rank=Rank.NOTE if beside else Rank.BROKEN,
        event=step,
        source=line_of_origin(trace, course.optimizer) or step.source,
    )


def _find_dead_models(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for each model whose first weights have died while a part of it learns on."""
    models: dict[str, list[Parameter]] = {}
    for p in events(trace, Parameter):
        if p.held and p.received and p.gradient > 0 and not p.copy:
            models.setdefault(p.name.partition(".")[0], []).append(p)
    for own in models.values():
        weights = [p for p in own if p.dimensions >= 2]
        dead = list(takewhile(lambda p: p.dead >= _DEAD, weights))
        alive = [p for p in own if not p.dead]
        half = sum(p.elements for p in weights) / 2
        if len(dead) >= 2 and alive and sum(p.elements for p in dead) >= half:
            yield _make_dead_finding(trace, dead, alive[0])


def _make_dead_finding(trace: Trace[Event], dead: list[Parameter], alive: Parameter) -> Finding:
    """Return the finding about weights that get gradients of zero from some step on."""
    return Finding(
        f"the first layers of `{trace.subject}` have died and get no gradient any more",
        f"{dead[0].name} to {dead[-1].name}; {alive.name} still learns",
        "exactly "
        + integer(0)
        + f" in each of the last {min(p.dead for p in dead)} steps that were watched",
        "above " + integer(0) + f" within {_DEAD} steps",
        why="what the model says no longer depends on its input: "
        + (
            "; ".join(filter(None, (tell_of_start(trace), tell_of_rate(trace))))
            or "perhaps all units of a layer died in a step that was too large; a lower rate,"
            " warm-up or a leaky activation keeps them; or something without a gradient, such as"
            " round, stands before what still learns"
        ),
        event=dead[0],
        source=dead[0].source or line_of_steps(trace),
    )
