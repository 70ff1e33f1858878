"""What may keep a model from learning, as far as the other numbers of its run show it."""

from math import isfinite
from pathlib import Path

from trainguard.core.measure import integer, number
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import count, events, gradient_sizes, main_course, middle

_STILL = 0.05  # of the weights, by which all steps together move them at most: it is no learning
_SLOPE = 0.01  # of the weights' norm: a gradient that is smaller would need a rate that is absurd
_FADED = 1e-5  # of the largest gradient: Adam's epsilon alone is more
# Deviations of an input from one sample to another, where 1 is usual: 85 that of bytes.
_FLAT, _WIDE = 0.02, 20.0


def find_causes(trace: Trace[Event], fit: BaselineFit) -> list[str]:
    """Return what inputs, first weights, a rate that is too low and gradients that fade tell."""
    dead = 2 * max(fit.alike, fit.blank) > fit.calls  # then steps are small for want of a gradient
    rate = "" if dead else _of_rate(trace)
    told = [tell_of_inputs(fit), _of_weights(trace), rate, tell_of_signal(trace)]
    told += [] if told[-1] else [_of_gradients(trace)]
    return [each for each in told if each]


def tell_of_inputs(fit: BaselineFit) -> str:
    """Return a sentence about inputs that hardly differ, or are far from numbers around one."""
    if not 0 < fit.deviation < _FLAT and not fit.deviation > _WIDE:
        return ""
    perhaps = (
        "are divided twice by their range" if fit.deviation < _FLAT else "were never normalised"
    )
    return (
        f"its inputs deviate by {number(fit.deviation)} from one sample to another: perhaps they"
        f" {perhaps}"
    )


def tell_of_signal(trace: Trace[Event]) -> str:
    """Return a sentence about what becomes of the input on its way through the layers."""
    for probe in events(trace, Probe):
        line = f" ({Path(probe.source).name})" if probe.source else ""
        if probe.probe == "signal grown":
            return (
                f"numbers grow from {number(probe.reference)} to {number(probe.measured)} from"
                f" {probe.label}: perhaps its weights were drawn far too large{line}, or something"
                " that normalises is missing"
            )
        if probe.probe == "signal lost":
            share = number(probe.measured / probe.reference)
            return (
                f"the last layer gets {share} of what differs between samples in the first: most of"
                f" it is lost between {probe.label}{line}"
            )
    return ""


def _of_weights(trace: Trace[Event]) -> str:
    """Tell of layers whose units began alike."""
    for probe in events(trace, Probe):
        if probe.probe in ("equal units", "units begun equal"):
            line = f" ({Path(probe.source).name})" if probe.source else ""
            return (
                f"all units of {probe.label} began with the same weights{line}, and so did those of"
                f" {integer(probe.reference, 'layers')} in all: draw them, as torch does by itself"
            )
    return ""


def _of_rate(trace: Trace[Event]) -> str:
    """Tell of steps that all together hardly move the weights."""
    course = main_course(trace)
    steps = [s for s in course.steps if s.weight > 0 and isfinite(s.update)] if course else []
    if course is None or not steps:
        return ""
    moved = middle([step.update / step.weight for step in steps]) * count(course.steps)
    rates = [rate for step in steps[-1:] for rate in step.rates]
    slope = middle([step.norm / step.weight for step in steps])
    if not 0 < moved < _STILL or not rates or not slope >= _SLOPE:
        return ""
    return (
        f"all steps together move the weights by {number(moved)} of their norm at most: the rate of"
        f" {course.optimizer}, {number(max(rates))}, is too low"
    )


def _of_gradients(trace: Trace[Event]) -> str:
    """Tell of layers whose gradient is nothing beside that of others."""
    course = main_course(trace)
    looked = [sizes for step in course.steps if (sizes := gradient_sizes(step))] if course else []
    if not looked:
        return ""
    sizes = looked[-1]
    lowest, highest = min(sizes, key=lambda n: sizes[n]), max(sizes, key=lambda n: sizes[n])
    least, most = sizes[lowest], sizes[highest]
    if least >= _FADED * most:
        return ""
    return (
        f"{lowest} gets {number(least / most)} of the gradient of {highest}: perhaps saturating"
        " units on the way, as sigmoids are in many layers, or weights that are far too small"
    )
