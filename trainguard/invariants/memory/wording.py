"""How judgements of memory put things: amounts, places, sizes."""

from trainguard.core.errors import Unjudged
from trainguard.core.measure import Measure, number
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.wording import of
from trainguard.subjects.units import format_bytes

_LISTED = 3


def find_stop(trace: Trace[Usage]) -> Usage | None:
    """Return the event of a step that was not made to its end, or None."""
    return next(of(trace, "stopped"), None)


def unknown(stop: Usage | None, what: str) -> None:
    """Raise Unjudged for what a step that was stopped does not tell."""
    if stop is not None:
        raise Unjudged(
            f"the step was stopped at {format_bytes(stop.measured)}, which leaves open {what}"
        )


def step(trace: Trace[Usage]) -> str:
    """Name what the memory is of: "a training step of `GPT`"."""
    kind = {"loss": "one call of", "body": "the body of"}.get(
        str(trace.conditions.get("family", "")), "a training step of"
    )
    return f"{kind} `{trace.subject}`"


def where(seen: Usage) -> str:
    """Say when and at which sizes something was seen."""
    sizes = ", ".join(f"{name}={size}" for name, size in seen.sizes)
    return ", ".join(part for part in (seen.at, sizes) if part)


def amounts(measured: float, allowed: float) -> tuple[Measure, Measure]:
    """Write two amounts in one unit, with the bytes where they would look alike."""
    left, right = format_bytes(measured), format_bytes(allowed)
    if left == right or left.split()[-1] != right.split()[-1]:
        return left + f" ({measured:,.0f} B)", right + f" ({allowed:,.0f} B)"
    return left, right


def describe_source(seen: Usage) -> str:
    """Say where a number comes from, and why it is not a prediction where it is not."""
    why = f"as {seen.detail}" if seen.detail.startswith("on fake tensors") else seen.detail
    return ", ".join(part for part in (seen.how, why) if part)


def largest(trace: Trace[Usage], quantity: str) -> str:
    """List the largest parts of the peak: "activations 8.1 GiB, gradients 2.0 GiB"."""
    key = "reference" if quantity == "category" else "measured"
    parts = sorted(of(trace, quantity), key=lambda seen: -getattr(seen, key))[:_LISTED]
    return ", ".join(f"{seen.place} {format_bytes(getattr(seen, key))}" for seen in parts)


def percent(share: float) -> Measure:
    """Write a share: 0.304 as "30.4 %"."""
    return number(100 * share, "%", ".1f")
