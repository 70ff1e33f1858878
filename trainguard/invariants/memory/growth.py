"""Judgements of how memory grows: with a size, and over the steps of a training."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, number, portion
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import amounts, describe_source, step
from trainguard.invariants.wording import of
from trainguard.subjects.units import SIZES, TOLERANCE, exceeds, fit_power, format_bytes

_LEAST = 1024.0  # bytes per step
_MUCH = 16 * 1024.0  # bytes per step that no history of numbers takes
_SO_FAR = " so far"  # within one pass through the data, at the end of which it may be let go of


@invariant("memory", probe="growth")
def memory_does_not_grow(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    Memory does not grow from step to step.

    Judges: ten real steps, and up to eighty where something seems to grow: graphs of autograd of
        nearly every step that are still there, tensors and memory of Python and NumPy that nearly
        every step leaves behind.
    Allows: less than 1 KiB per step of tensors and of any one line, or the budget's
        `growth_per_step`; the state of optimizers; deques, caches and buffers that have a bound. A
        note where the end of a pass through the data was not seen, and where many small objects are
        kept, as of a history.
    Misses: what libraries keep outside of tensors, NumPy and Python; what workers and threads keep;
        what grows in less than three of four steps.
    Why: a list of losses, a state that is carried on or a cache without bound ends a training after
        hours, in a line that has nothing to do with it.
    Source: PyTorch's frequently asked questions (docs.pytorch.org/docs/stable/notes/faq.html):
        don't accumulate history across your training loop.
    """
    allowed = trace.promise("budget:growth_per_step") or 0.0
    yield from _graphs(trace, allowed)
    for suffix in ("", _SO_FAR):
        kept = list(of(trace, f"kept tensors{suffix}"))
        total = sum(seen.measured for seen in kept)
        if total >= _LEAST and total > allowed:
            yield _tensors(trace, kept, total, allowed, Rank.NOTE if suffix else Rank.BROKEN)
        for quantity, most in (("kept data", _LEAST), ("kept objects", _MUCH)):
            for seen in of(trace, f"{quantity}{suffix}"):
                if seen.measured >= _LEAST and seen.measured > allowed:
                    sure = not suffix and seen.measured >= most
                    yield _host(trace, seen, allowed, Rank.BROKEN if sure else Rank.NOTE)


def _graphs(trace: Trace[Usage], allowed: float) -> Iterator[Finding]:
    """Yield the finding of graphs that are kept; no growth within the budget is one."""
    for seen in of(trace, "kept graphs"):
        if allowed and seen.measured <= allowed:
            continue
        held = f"held by {seen.detail}: " if seen.detail else ""
        yield Finding(
            f"`{trace.subject}` keeps the graphs of steps that are over",
            f"output of `{seen.place}`" if seen.place else "the loss",
            "graphs of "
            + portion(seen.count, seen.of, "steps")
            + f", {format_bytes(seen.measured)} per step",
            "graphs of " + portion(0, seen.of, "steps"),
            why=f"{held}use `.item()` for a number, `.detach()` for a state",
            event=seen,
        )


def _tensors(
    trace: Trace[Usage], kept: list[Usage], total: float, allowed: float, rank: Rank
) -> Finding:
    """Return the finding of tensors that every step leaves behind."""
    most = max(kept, key=lambda seen: seen.measured)
    measured, limit = _per_step(total, allowed)
    held = f"held by {most.detail}" if most.detail else "something holds them"
    end = "; the end of a pass, which may let go of them, was not seen" if rank is Rank.NOTE else ""
    return Finding(
        f"every step of `{trace.subject}` leaves tensors behind",
        f"made in `{most.place}`" if most.place else "made outside of modules",
        measured + f", {most.how}",
        limit,
        why=f"{held}{end}",
        rank=rank,
        event=most,
    )


def _host(trace: Trace[Usage], seen: Usage, allowed: float, rank: Rank) -> Finding:
    """Return the finding of a line that holds ever more memory outside of tensors."""
    measured, limit = _per_step(seen.measured, allowed)
    cache = "perhaps a cache or a list that nothing is ever taken out of"
    history = "many small objects, perhaps a history"
    return Finding(
        f"every step of `{trace.subject}` leaves memory of Python or NumPy behind",
        "",
        measured + f", {seen.how}",
        limit,
        why=history if seen.quantity.startswith("kept objects") else cache,
        rank=rank,
        event=seen,
    )


def _per_step(grown: float, allowed: float) -> tuple[Measure, Measure]:
    """Write the growth and what is allowed of it."""
    if allowed < _LEAST:
        measured, limit = amounts(grown, _LEAST)
        return measured + " per step", "less than " + limit + " per step"
    measured, limit = amounts(grown, allowed)
    return measured + " per step", limit + " per step, the budget's growth_per_step"


@invariant("memory", probe="scaling", needs=("powers",))
def memory_scales_at_most(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    Memory grows with a size by at most the declared power.

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
    Source: Dao et al., FlashAttention (arXiv 2205.14135): attention written out is quadratic in the
        length.
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
            "power "
            + number(power, "", ".2f")
            + f": {', '.join(format_bytes(one.reference) for one in last)},"
            f" {describe_source(last[-1])}",
            "power " + number(allowed, "", ".2f") + f", and {TOLERANCE:.2f} more",
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
