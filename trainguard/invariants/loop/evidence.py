"""What a judgement of a run needs to have seen: without it, a pass would be false comfort."""

from collections.abc import Callable
from math import isnan
from typing import Any, TypeVar

from trainguard.core.catalogue import Evidence
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.fit import BaselineFit, Metrics, Score, Skill
from trainguard.events.loop import (
    Average,
    Evaluation,
    Logged,
    Parameter,
    Read,
    Scheduler,
    Step,
    Term,
)
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace

_PLAIN = "nothing edited"  # the question that each step is asked before all others
E = TypeVar("E", bound=Event)


def some(kind: type[E], missing: str, test: Callable[[E], Any] = lambda _: True) -> Evidence:
    """Return what says `missing` of a run without an event of a kind that passes a test."""

    def evidence(trace: Trace[Any]) -> str:
        """Return what is missing, or nothing."""
        found = any(isinstance(event, kind) and test(event) for event in trace)
        return "" if found else missing

    return evidence


def has_probe(probe: str, missing: str) -> Evidence:
    """Return what says `missing` of a run in which a probe could not be made."""

    def evidence(trace: Trace[Any]) -> str:
        """Return what is missing, or nothing; traces of before do not tell."""
        made = trace.conditions.get("looked", (probe,))
        found = any(isinstance(event, Probe) and event.probe == probe for event in trace)
        return "" if found or (isinstance(made, tuple) and probe in made) else missing

    return evidence


def has_answer(question: str, missing: str) -> Evidence:
    """Return what says of a run why a question was not answered, or `missing` if it never came."""

    def evidence(trace: Trace[Any]) -> str:
        """Return the reason that was told last of it, or of the step as it is, or nothing."""
        if trace.conditions.get("probe") is False:
            return "nothing was tried out: probes are switched off"
        events = [e for e in trace if isinstance(e, WhatIf)]
        asked = [e for e in events if e.question == question]
        if any(event.outcome == "answered" for event in asked):
            return ""
        plain = [e for e in events if e.question == _PLAIN and e.outcome == "given up"]
        told = asked or plain
        why = next((event.reason for event in reversed(told) if event.reason), "")
        return f"no step could be asked: {why}" if why else missing

    return evidence


def can_ask_steps(question: str) -> Evidence:
    """Return what says of a run on an accelerator that its steps could not be asked a question."""

    def evidence(trace: Trace[Any]) -> str:
        """Return why they could not, or nothing: a pass would be of what was tried beside it."""
        away = trace.conditions.get("device", "cpu") != "cpu"
        why = has_answer(question, "")(trace) if away else ""
        return f"models were tried alone, but {why}" if why else ""

    return evidence


def either(*choices: Evidence) -> Evidence:
    """Return what says what is missing of the first choice, where none of them is there."""

    def evidence(trace: Trace[Any]) -> str:
        """Return what is missing, or nothing."""
        missing = [choice(trace) for choice in choices]
        return missing[0] if all(missing) else ""

    return evidence


def both(first: Evidence, second: Evidence) -> Evidence:
    """Return what says what is missing of two that are needed: of the first, if it is."""
    return lambda trace: first(trace) or second(trace)


def steps_from(least: int) -> Evidence:
    """Return what says of a run that it made fewer steps than a judgement needs."""

    def evidence(trace: Trace[Any]) -> str:
        """Return what is missing, or nothing."""
        made = sum(event.span for event in trace if isinstance(event, Step))
        return "" if made >= least else f"fewer than {least} steps were made"

    return evidence


def formula_sets_rates(trace: Trace[Any]) -> str:
    """Return what says of a run that the rates of no optimizer without a scheduler change."""
    planned = {event.optimizer for event in trace if isinstance(event, Scheduler)}
    steps = [event for event in trace if isinstance(event, Step) and event.rates]
    own = {(step.optimizer, step.rates) for step in steps if step.optimizer not in planned}
    return "" if len(own) > len({optimizer for optimizer, _ in own}) else "-"


def several_optimizers(trace: Trace[Any]) -> str:
    """Return what is missing of a run that has one optimizer, or nothing."""
    made = trace.conditions.get("optimizers", ())
    several = isinstance(made, tuple) and len(made) > 1
    return "" if several else "there were no two optimizers"


def schedule_had_time(trace: Trace[Any]) -> str:
    """Return what says of a run that was stopped that no scheduler had been advanced by then."""
    made = [event for event in trace if isinstance(event, Scheduler)]
    over = trace.conditions.get("ended") == "finished" or any(each.calls for each in made)
    return "" if over else "no scheduler was advanced"


EVALUATIONS = some(Evaluation, "no evaluation was seen", lambda e: not e.routine)
MEASURED = some(
    Evaluation,
    "no evaluation with a loss function of torch was seen",
    lambda e: e.measures and not e.routine,
)
# What a pass without a loss is for is not known, unless it leaves batch statistics behind, or is
# about classes.
SWEPT = either(
    MEASURED,
    some(Evaluation, "-", lambda e: e.touched and not (e.gradients or e.routine)),
    some(Score, "-", lambda score: score.evaluation),
    has_probe("awake", "-"),
)
CLIPPING = some(Step, "no gradient was clipped", lambda s: s.clip)
GRADIENTS = some(Step, "no norm of gradients was known", lambda s: not isnan(s.norm))
LAYERS = some(Step, "fewer than 3 layers had a gradient", lambda s: len(s.layers) >= 3)
UPDATES = some(Step, "no update was measured", lambda s: s.update >= 0)
LOSSES = some(Step, "no loss was handed to backward", lambda s: s.losses or not isnan(s.loss))
RATES = some(Step, "no learning rate was known", lambda s: s.rates)
BATCHES = some(Step, "no pass that learned was seen", lambda s: s.batch)
ACCUMULATION = some(Step, "no gradients were accumulated", lambda s: len(s.losses) > 1)
FUNCTIONS = some(Term, "no loss function of torch was called", lambda t: not t.evaluation)
SCHEDULERS = some(Scheduler, "no learning-rate scheduler was made")
SCHEDULES = both(SCHEDULERS, schedule_had_time)
PLATEAUS = both(SCHEDULERS, some(Scheduler, "no scheduler is told a metric", lambda s: s.mode))
LAMBDAS = both(SCHEDULERS, some(Scheduler, "no scheduler is a LambdaLR", lambda s: s.base))
HORIZONS = either(
    both(SCHEDULERS, some(Scheduler, "no scheduler has a length", lambda s: s.length)),
    formula_sets_rates,
)
NUMBERS = some(Logged, "no number was printed or logged")
READS = some(Read, "no line of the script read a gradient")
PARAMETERS = some(Parameter, "no parameter was seen")
FROZEN = either(
    some(
        Parameter,
        "no parameter is frozen",
        lambda p: p.moved_frozen or bool(p.unheard) or not p.trainable,
    ),
    lambda trace: "" if "frozen" in trace.promises else "none is promised to be",
)
AVERAGES = some(Average, "no average of the weights was seen")
FITS = some(
    BaselineFit,
    "no loss function of torch compared a model with classes or numbers often enough",
    lambda fit: fit.calls,
)
TARGETS = either(
    has_probe("target", "no target was seen beside its input"),
    has_probe("future", "-"),
    has_probe("present", "-"),
    has_probe("shown", "-"),
    has_probe("shown numbers", "-"),
)
MIXING = both(
    either(
        has_probe("mix", "no pass could be tried with another sample"),
        has_probe("mix along time", "-"),
        has_answer(
            "a sample edited",
            "no step called a module with editable inputs of a row for each sample",
        ),
    ),
    can_ask_steps("a sample edited"),
)
HELD_OUT = either(
    has_probe("held out", "no evaluation was seen whose samples could be told apart"),
    has_probe("overlap", "-"),
    has_probe("windows", "-"),
    has_probe("folds", "-"),
    has_probe("rows", "-"),
    has_probe("shared indices", "-"),
    has_probe("shared targets", "-"),
    has_probe("shared scale", "-"),
)
SERVED = some(Probe, "no loader of several batches was seen", lambda p: p.probe == "batches")
SKILLS = some(Skill, "no evaluation of classes was seen")
METRICS = some(Metrics, "no evaluation whose targets are known was seen")
