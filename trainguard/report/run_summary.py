"""A run in a few numbers: what a trace says of speed, loss, gradients, rates and memory."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Evaluation, Step
from trainguard.events.parameter import Parameter
from trainguard.events.trace import Trace

_MOST = 4  # optimizers and parameter groups that are told apart
_ANSWERS = {  # to a question, of a WhatIf
    "nothing edited": "the same loss, {0.measured:.4g}",
    "inputs edited": "{0.measured:.0f} of loss, output and gradients change",
    "padding edited": "the loss changes by {0.measured:.4g}, rounding is {0.reference:.4g}",
    "a sample edited": "{0.measured:.0f} of {0.reference:.0f} other samples change",
    "batch in another order": "{0.measured:.0f} of {0.reference:.0f} samples that moved change",
    "labels exchanged": "the step changes in {0.measured:.0f} of {0.reference:.0f} cases",
    "ignored labels edited": "the step changes in {0.measured:.0f} of {0.reference:.0f} cases",
    "checkpoints bypassed": "{0.measured:.0f} of {0.reference:.0f} gradients change",
    "gradients with their graph": "{0.measured:.0f} terms move parameters only then",
    "states with their graph": "{0.measured:.0f} hand-overs of a state are detached",
    "terms unread": "{0.measured:.0f} of {0.reference:.0f} have no place that reads them",
    "a document edited": "the output changes at {0.measured:.0f} of {0.reference:.0f} places of"
    " other documents",
    "batch divided": "{0.measured:.0%} of the loss is a sum over samples, the rest a mean",
    "batch accumulated": "that of its parts differs from its gradient by {0.measured:.2g} of it",
    "losses scaled": "the gradients change by {0.measured:.2g} of their norm",
    "autocast off": "the gradients change by {0.measured:.2g} of their norm, "
    "{0.reference:.2g} may be",
    "compile off": "the gradients change by {0.measured:.2g} of their norm, "
    "{0.reference:.2g} may be",
    "fused off": "{0.measured:.0f} of {0.reference:.0f} numbers that move move otherwise",
    "other noise": "{0.measured:.0f} of loss and gradients change",
    "evaluation mode": "the loss is {0.measured:.4g}, in training mode at most {0.reference:.4g}",
    "one batch learned": "its loss falls to {0.measured:.4g}, a constant's is {0.reference:.4g}",
    "other rates": "the loss comes from {0.reference:.4g} to {0.measured:.4g}",
    "terminal states edited": "the loss changes by {0.measured:.4g}, rounding is {0.reference:.4g}",
    "the same batch again": "its loss is higher after {0.measured:.0f} of {0.reference:.0f} steps",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """
    What is told of a run besides its findings.

    steps: of all optimizers; optimizers: how many each of them made.
    seconds: of the whole run; pace: of one step; wait: the share of that spent waiting for data.
    losses: {optimizer: (of its first step, of its last)}; where losses are sums over samples, of
        the last that has as many samples as the first.
    norm: the median of the gradient norms; clipped: the same after any clipping.
    rates: {optimizer: (rates of its groups in its first step, in its last)}.
    memory: the most bytes in use; evaluations: how many; evaluated: their first and last loss.
    faults: what trainguard itself failed at, one line each.
    unprobed: the modules of which no copy could be tried out, and why, one line each.
    ended: "finished", "stopped", "failed" or "interrupted".
    """

    steps: int
    optimizers: dict[str, int]
    seconds: float
    pace: float
    wait: float
    losses: dict[str, tuple[float, float]]
    norm: float
    clipped: float
    rates: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
    memory: int
    evaluations: int
    evaluated: tuple[float, float] | None
    faults: tuple[str, ...]
    unprobed: tuple[str, ...]
    ended: str
    torch: str
    events: int

    @property
    def loss(self) -> tuple[float, float] | None:
        """Return the first and the last loss of the optimizer that made the most steps."""
        return self.losses.get(max(self.optimizers, key=self.optimizers.__getitem__, default=""))


def summarize_run(trace: Trace[Any], ended: str = "") -> RunSummary:
    """Add up a trace; `ended` goes before what the recorder says."""
    steps = [event for event in trace if isinstance(event, Step)]
    evaluations = _evaluations(trace)
    made: dict[str, list[Step]] = {}
    for step in steps:
        made.setdefault(step.optimizer, []).append(step)
    pace, wait = _pace(made.values())
    return RunSummary(
        steps=int(_number(trace.conditions.get("steps"), sum(step.span for step in steps))),
        optimizers={name: sum(step.span for step in own) for name, own in made.items()},
        seconds=_number(trace.conditions.get("seconds"), sum(step.seconds for step in steps)),
        pace=pace,
        wait=wait,
        losses={name: ends for name, own in made.items() if (ends := _ends(_comparable(own)))},
        norm=_median(step.norm_before for step in steps),
        clipped=_median(step.norm for step in steps),
        rates={name: (own[0].rates, own[-1].rates) for name, own in made.items() if own[0].rates},
        memory=max((step.memory for step in steps), default=0),
        evaluations=len(evaluations),
        evaluated=_ends(event.loss for event in evaluations if _is_told(event)),
        faults=_lines(trace, "faults"),
        unprobed=_lines(trace, "unprobed"),
        ended=ended or str(trace.conditions.get("ended", "finished")),
        torch=str(trace.conditions.get("torch", "")),
        events=len(trace),
    )


def _evaluations(trace: Trace[Any]) -> list[Evaluation]:
    """Return the evaluations of what is trained: a module that never moves only serves others."""
    known: dict[str, bool] = {}
    for event in trace:
        if isinstance(event, Parameter):
            root = event.name.partition(".")[0]
            known[root] = known.get(root, False) or event.moved or event.copy
    return [
        event
        for event in trace
        if isinstance(event, Evaluation)
        and not event.routine
        and known.get(event.module.partition(".")[0], True)
    ]


def _is_told(event: Evaluation) -> bool:
    """Say whether the loss of an evaluation is what its code reads: of elements, it need not be."""
    return event.measures and "none" not in event.reduction.split("/")


def _lines(trace: Trace[Any], condition: str) -> tuple[str, ...]:
    """Return the lines of a condition that a run was made under; none where it has none."""
    told = trace.conditions.get(condition)
    return tuple(map(str, told)) if isinstance(told, tuple) else ()


def as_plain(told: RunSummary) -> dict[str, Any]:
    """Return a digest as it stands in a JSON file: what is not a finite number is null."""
    return {
        "steps": told.steps,
        "optimizers": told.optimizers,
        "seconds": finite(told.seconds),
        "seconds_per_step": finite(told.pace),
        "waiting_for_data": finite(told.wait),
        "loss": _plain_ends(told.loss),
        "losses": {name: _plain_ends(ends) for name, ends in told.losses.items()},
        "gradient_norm": finite(told.norm),
        "gradient_norm_clipped": finite(told.clipped),
        "rates": {
            name: {"first": [finite(r) for r in first], "last": [finite(r) for r in last]}
            for name, (first, last) in told.rates.items()
        },
        "memory": told.memory,
        "evaluations": told.evaluations,
        "evaluation_loss": _plain_ends(told.evaluated),
        "faults": list(told.faults),
        "unprobed": list(told.unprobed),
        "ended": told.ended,
        "torch": told.torch,
        "events": told.events,
    }


def as_rows(told: RunSummary) -> list[tuple[str, str]]:
    """Return a digest as labelled rows, without those of which nothing is known."""
    rows = []
    same = len(set(map(repr, told.losses.values()))) == 1  # a loss that all step on
    for name, ends in list(told.losses.items())[: 1 if same else _MOST]:
        of = "" if same else f" of {name}"
        rows.append(("loss", f"{_ends_text(ends)} from the first to the last step{of}"))
    if not math.isnan(told.norm):
        clipped = f", {told.clipped:.4g} after clipping" if told.clipped < 0.999 * told.norm else ""
        rows.append(("gradient", f"norm {told.norm:.4g} in the median{clipped}"))
    for name, (first, last) in list(told.rates.items())[:_MOST]:
        of = f" of {name}" if len(told.rates) > 1 else ""
        rows.append(("rate", f"{_rates_text(first, last)}{of}"))
    if told.evaluations:
        loss = f", loss {_ends_text(told.evaluated)}" if told.evaluated else ""
        rows.append(("evaluated", f"{_times(told.evaluations)}{loss}"))
    if told.memory:
        rows.append(("memory", f"at most {size_text(told.memory)} in use"))
    rows += [("unprobed", line) for line in told.unprobed]
    return [*rows, *(("fault", line) for line in told.faults)]


def questions_as_rows(trace: Trace[Any]) -> list[tuple[str, str]]:
    """Return what steps were asked and what they answered, or why they did not, a row for each."""
    rows = []
    for asked in trace:
        if isinstance(asked, WhatIf):
            edit = f"{asked.question} ({asked.label})" if asked.label else asked.question
            said = f"{asked.outcome}: {asked.reason}"
            if asked.outcome == "answered":
                said = _ANSWERS.get(asked.question, "").format(asked)
                said = said or asked.smallest or "it holds"
                said += f", first seen in {asked.enters}" if asked.enters else ""
            rows.append(("what if", f"step {asked.step}, {edit}: {said}"))
    return rows


def headline(told: RunSummary, name: str) -> str:
    """Return one sentence on how long a run was and how fast."""
    made = told.optimizers.items()
    by = ", ".join(f"{n} {count:,}" if len(made) > 1 else n for n, count in list(made)[:_MOST])
    more = ", ..." if len(made) > _MOST else ""
    of = "" if by.startswith("by hand") else "of "
    steps = f"{told.steps:,} step{'' if told.steps == 1 else 's'} {of}{by}{more}"
    pace = "" if math.isnan(told.pace) else f", {duration_text(told.pace)} each"
    wait = f", {told.wait:.0%} of it waiting for data" if told.wait >= 0.005 else ""
    end = "" if told.ended == "finished" else f" ({told.ended})"
    return f"{name}: {steps} in {told.seconds:.1f} s{pace}{wait}{end}"


def size_text(size: float) -> str:
    """Write a number of bytes in the largest unit that leaves a number above one."""
    power = 0
    while size >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} {_UNITS[0]}"


def duration_text(seconds: float) -> str:
    """Write a short time in the unit that suits it."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def finite(value: float) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if math.isfinite(value) else None


def _number(value: object, default: float) -> float:
    """Return a number of the trace's header, or what was added up in its place."""
    return float(value) if isinstance(value, int | float) else default


def _pace(made: Collection[Sequence[Step]]) -> tuple[float, float]:
    """
    Return the seconds of one step, and the share of them spent waiting for data.

    The first window of an optimizer is left out where there are others: it holds imports and the
    making of the model. The windows of several optimizers overlap.
    """
    counted = [step for own in made for step in (own[1:] or own)]
    spans = sum(step.span for step in counted)
    seconds = sum(step.seconds * step.span for step in counted)
    if not seconds:
        return math.nan, math.nan
    wait = sum(step.wait * step.span for step in counted)
    return seconds / spans / len(made), wait / seconds


def _comparable(steps: Iterable[Step]) -> list[float]:
    """Return the losses of steps, but for a last batch whose sums are of fewer samples."""
    known = [step for step in steps if step.losses]
    whole = [s for s in known[len(known) // 2 :] if sum(s.batch) == sum(known[0].batch)]
    if whole and not known[-1].weights:
        known = known[: known.index(whole[-1]) + 1]
    return [step.loss for step in known]


def _ends(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the first and the last of some values."""
    listed = list(values)
    return (listed[0], listed[-1]) if listed else None


def _median(values: Iterable[float]) -> float:
    """Return the median of what is known, or nan."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def _plain_ends(ends: tuple[float, float] | None) -> dict[str, float | None] | None:
    """Return a first and a last value as JSON has them."""
    return None if ends is None else {"first": finite(ends[0]), "last": finite(ends[1])}


def _ends_text(ends: tuple[float, float]) -> str:
    """Write a first and a last value."""
    return f"{ends[0]:.4g} -> {ends[1]:.4g}"


def _rates_text(first: Sequence[float], last: Sequence[float]) -> str:
    """Write the rates of the groups at both ends, once where they are alike."""
    sides = [", ".join(dict.fromkeys(f"{rate:.4g}" for rate in r[:_MOST])) for r in (first, last)]
    return " -> ".join(dict.fromkeys(sides))


def _times(count: int) -> str:
    """Write how often something was done."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
