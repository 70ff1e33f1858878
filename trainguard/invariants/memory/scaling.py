"""Judgement of how the memory of a step grows with a size."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import describe_source, of, step
from trainguard.subjects.units import SIZES, TOLERANCE, exceeds, fit_power, format_bytes


@invariant("memory", probe="scaling", needs=("powers",))
def memory_scales_at_most(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    Memory grows with a size by no higher power than is declared.

    Judges: the highest moment of the forward and backward pass at five to eight sizes that double,
        around the real one where `at` gives it: the power with which the part grows that does grow,
        whatever stays constant.
    Allows: the declared power and 0.2 more, which n log n stays within. Only what exceeds it at
        each of the last three doublings is broken: where another part becomes the largest, memory
        looks steep for one or two.
    Misses: a steep part that is less than about a seventh of the growth at these sizes: the square
        of a sequence length shows from some hundreds on. The step of the optimizer.
    Why: twice the length should cost twice the memory; a mask, a table of relative positions or
        attention written out costs four times, and the run dies on its longest recording.
    Source: a post-mortem: stereo doubled the sequence, and the memory with it.
    """
    for name in dict.fromkeys(seen.place for seen in of(trace, "size")):
        seen = sorted((s for s in of(trace, "size") if s.place == name), key=lambda s: s.measured)
        allowed = trace.promise(f"power:{name}")
        amounts = [one.reference for one in seen]
        if allowed is None or not exceeds(amounts, allowed):
            continue
        power, last = fit_power(amounts), seen[-SIZES:]
        sizes = ", ".join(f"{one.measured:,.0f}" for one in last)
        yield Finding(
            f"{step(trace)} takes memory that grows with a higher power of `{name}` than declared",
            ", ".join([f"{name} = {sizes}", *(f"{n}={size}" for n, size in last[-1].sizes)]),
            f"power {power:.2f}: {', '.join(format_bytes(one.reference) for one in last)},"
            f" {describe_source(last[-1])}",
            f"power {allowed:.2f}, and {TOLERANCE:.2f} more",
            why=_why(trace, name),
            source=next((one.source for one in of(trace, "grown") if one.place == name), ""),
            event=last[-1],
        )


def _why(trace: Trace[Usage], name: str) -> str:
    """Say what grew most with the last doubling."""
    grown = (one for one in of(trace, "grown") if one.place == name)
    parts = [
        f"most of the last doubling is {format_bytes(g.measured)} of {g.detail}" for g in grown
    ]
    return parts[0] if parts else ""
