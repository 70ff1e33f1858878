"""What may keep a model from learning, as far as the other numbers of its run show it."""

from itertools import takewhile
from math import isfinite

from trainguard.core.measure import integer, number
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.loop import Parameter, Step, Term
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import (
    count,
    courses,
    events,
    gradient_sizes,
    in_line,
    line_of_origin,
    lines_of_origin,
    main_course,
    middle,
)

_STILL = 0.05  # of the weights, by which all steps together move them at most: it is no learning
_SLOPE = 0.01  # of the weights' norm: a gradient that is smaller would need a rate that is absurd
_FADED = 1e-5  # of the largest gradient: Adam's epsilon alone is more
_STEEP = 5.0  # times a constant's: a model that knows nothing loses twice as much at most
ALONE = 0.9  # of the backward passes
_LEAST_LOOKS, _LEAST_STEPS = 8, 32  # looks, and the step of the last: buffers may fill up first
_GROWN = 10.0  # times the first loss: it has got out of hand, whatever the noise of batches
# Of the weights, by which the largest step moves them before the loss doubles: 0.16 and more at
# rates that are too high, less than 0.02 where a sign is turned at an ordinary one.
_FAR, _NEAR = 0.1, 0.02
# Deviations of an input from one sample to another, where 1 is usual: 85 that of bytes.
_FLAT, _WIDE = 0.02, 20.0


def find_causes(trace: Trace[Event], fit: BaselineFit) -> list[str]:
    """Return what inputs, first weights, rates, signs and gradients that fade tell."""
    dead = 2 * max(fit.alike, fit.blank) > fit.calls  # then steps are small for want of a gradient
    rate = tell_of_rate(trace) or ("" if dead else _of_small_steps(trace))
    inputs = tell_of_inputs(trace, fit)
    start = inputs or tell_of_start(trace)
    told = [start, _of_weights(trace), rate, tell_of_signal(trace)]
    told += [] if told[-1] else [_of_gradients(trace)]
    return [each for each in told if each]


def tell_of_outputs(trace: Trace[Event], fit: BaselineFit | None = None) -> str:
    """Return what tells why outputs are far off, or all alike; or nothing."""
    if limits := tell_of_limits(trace):
        return limits
    start = (tell_of_inputs(trace, fit) if fit is not None else "") or tell_of_start(trace)
    return "; ".join(filter(None, (start, tell_of_rate(trace), tell_of_signal(trace))))


def tell_of_inputs(trace: Trace[Event], fit: BaselineFit) -> str:
    """Return a sentence about inputs that hardly differ, or are far from numbers around one."""
    if not 0 < fit.deviation < _FLAT and not fit.deviation > _WIDE:
        return ""
    perhaps = (
        "are divided twice by their range" if fit.deviation < _FLAT else "were never normalised"
    )
    return (
        f"its inputs deviate by {number(fit.deviation)} from one sample to another: perhaps they"
        f" {perhaps}{before_loader(trace)}"
    )


def before_loader(trace: Trace[Event]) -> str:
    """Return where inputs come from, after a comma, or nothing where no loader is known."""
    line = line_of_origin(trace, "loader")
    scaled = in_line(*lines_of_origin(trace, "scaled"))
    return (
        f"{scaled}, before the loader{in_line(line)} is made, or as it serves them" if line else ""
    )


def tell_of_start(trace: Trace[Event]) -> str:
    """Return a sentence about a first loss that is far above a constant's, or nothing."""
    course = main_course(trace)
    fits = [fit for fit in events(trace, BaselineFit) if fit.constants and fit.only >= ALONE]
    begun = course.every[0].loss if course else 0.0
    if not fits or not isfinite(begun) or not begun >= _STEEP * fits[0].constants[0] > 0:
        return ""
    line = line_of_draws(trace)
    return (
        f"the first loss, {number(begun)}, is {number(begun / fits[0].constants[0], 'times')} that"
        f" of a constant: perhaps weights are drawn far too large{line}, or inputs are"
    )


def line_of_draws(trace: Trace[Event]) -> str:
    """Return the line that has drawn or set weights, in brackets, where only one did."""
    weights = {parameter.name for parameter in events(trace, Parameter)}
    lines = {origin.source for origin in events(trace, Origin) if origin.name in weights}
    return in_line(lines.pop()) if len(lines) == 1 else ""


def tell_of_limits(trace: Trace[Event]) -> str:
    """Return a sentence about a function that is at its limit for every sample, or nothing."""
    for probe in events(trace, Probe):
        if probe.probe == "saturated":
            function = probe.label.rpartition(" ")[2]
            return (
                f"{function}() is at its limit for every sample{in_line(probe.source)}, where all"
                " gradients become zero"
            )
    return ""


def tell_of_signal(trace: Trace[Event]) -> str:
    """Return a sentence about what becomes of the input on its way through the layers."""
    for probe in events(trace, Probe):
        line = in_line(probe.source)
        if probe.probe == "signal grown":
            return (
                f"numbers grow from {number(probe.reference)} to {number(probe.measured)} from"
                f" {probe.label}: perhaps its weights were drawn far too large{line}, or something"
                " that normalises is missing"
            )
        if probe.probe == "signal lost":
            share, draws = number(probe.measured / probe.reference), line_of_draws(trace)
            return (
                f"the last layer gets {share} of what differs between samples in the first: most of"
                f" it is lost between {probe.label}{line}"
                + (f", with the weights that were drawn{draws}" if draws else "")
            )
    return ""


def _of_weights(trace: Trace[Event]) -> str:
    """Tell of layers whose units began alike."""
    for probe in events(trace, Probe):
        if probe.probe in ("equal units", "units begun equal"):
            line = in_line(probe.source)
            return (
                f"all units of {probe.label} began with the same weights{line}, and so did those of"
                f" {integer(probe.reference, 'layers')} in all: draw them, as torch does by itself"
            )
    return ""


def tell_of_rate(trace: Trace[Event]) -> str:
    """Return a sentence about a rate, or a sign, that other steps with one batch show as wrong."""
    return _of_rate_that_learns(trace) or tell_of_steps(trace)


def _of_rate_that_learns(trace: Trace[Event]) -> str:
    """Tell of one batch that steps with another rate learn, and those with the run's own do not."""
    times = [answer.numbers[0] for answer in answers_to(trace, "one batch learned")]
    if not times or not all(isfinite(each) and each > 0 for each in times):
        return ""
    low, high = min(times), max(times)
    if not (low > 1 or high < 1):
        return ""
    return (
        f"steps with one batch learn it at {number(high if low > 1 else low, 'times')} the rate,"
        f" and not as they are: {name_rate(trace)} is too {'low' if low > 1 else 'high'}"
        + (find_summed_losses(trace) if high < 1 else "")
    )


def find_summed_losses(trace: Trace[Event]) -> str:
    """Tell of a loss that is a sum over a batch, whose gradients grow with it."""
    terms = [term for term in events(trace, Term) if term.calls and not term.evaluation]
    if not terms or any(term.reduction != "sum" for term in terms):
        return ""
    return f", or the loss is to be a mean: {terms[0].function}{in_line(terms[0].source)} sums"


def tell_of_steps(trace: Trace[Event]) -> str:
    """Return a sentence about steps with one batch that make its loss higher, or nothing."""
    answers = answers_to(trace, "the same batch again")
    found = {answer.enters if answer.measured == answer.reference else "" for answer in answers}
    if found == {"sign"}:
        return (
            "each step with one batch makes its loss higher, at a hundredth of the rate too: a sign"
            " is turned somewhere from the loss to the step"
        )
    if found == {"rate"}:
        return (
            "each step with one batch makes its loss higher, and lower at a hundredth of the rate:"
            f" {name_rate(trace)} is too high{find_summed_losses(trace)}"
        )
    return ""


def tell_of_nonfinite(trace: Trace[Event], step: Step) -> list[str]:
    """Return what is known of a step that is not finite: the first such value, what led to it."""
    first = f"the first value that is not finite: {step.culprit}" if step.culprit else ""
    return [each for each in (first, tell_of_growth(trace, step)) if each]


def tell_of_growth(trace: Trace[Event], until: Step) -> str:
    """Return a sentence about what a loss has grown from, up to a step, or nothing."""
    if told := tell_of_steps(trace):
        return told
    course = next(c for c in courses(trace) if c.optimizer == until.optimizer)
    before = [s for s in course.steps if s.clock < until.clock and isfinite(s.loss)]
    if not before or not before[-1].loss > _GROWN * before[0].loss > 0:
        return ""
    rising = list(takewhile(lambda s: s.loss < 2 * before[0].loss, before))
    moved = max((s.update / s.weight for s in rising if s.weight > 0), default=0.0)
    if moved >= _FAR:
        return (
            f"a step moves the weights by {number(moved)} of their norm before the loss doubles:"
            f" {name_rate(trace)} is perhaps too high"
        )
    if 0 < moved < _NEAR:
        return (
            f"the loss doubles before a step has moved the weights by {number(_NEAR)} of their"
            " norm: perhaps a sign is turned, and steps lead up"
            + in_line(*lines_of_origin(trace, "steps by hand"))
        )
    return ""


def name_rate(trace: Trace[Event]) -> str:
    """Return the rate of the optimizer that steps most, in words, and the line that made it."""
    course = main_course(trace)
    rates = [rate for step in course.steps for rate in step.rates] if course else []
    if course is None or not rates:
        return "the size of a step"
    line = in_line(line_of_origin(trace, course.optimizer))
    return f"the rate of {course.optimizer}, {number(max(rates))}{line},"


def _of_small_steps(trace: Trace[Event]) -> str:
    """Tell of steps that all together hardly move the weights."""
    course = main_course(trace)
    steps = [s for s in course.steps if s.weight > 0 and isfinite(s.update)] if course else []
    if course is None or not steps:
        return ""
    moved = middle([step.update / step.weight for step in steps]) * count(course.steps)
    slope = middle([step.norm / step.weight for step in steps])
    if not 0 < moved < _STILL or not steps[-1].rates or not slope >= _SLOPE:
        return ""
    return (
        f"all steps together move the weights by {number(moved)} of their norm at most:"
        f" {name_rate(trace)} is too low"
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


def find_one_targets(trace: Trace[Event]) -> list[Probe]:
    """Return the outputs that all losses pull to one target, looked at often and long enough."""
    found = [probe for probe in events(trace, Probe) if probe.probe == "one target"]
    return [p for p in found if p.measured >= _LEAST_LOOKS and p.step >= _LEAST_STEPS]
