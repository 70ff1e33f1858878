"""Judgements of the highest moment of a step, and of each category in it."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import (
    amounts,
    describe_source,
    find_stop,
    largest,
    of,
    step,
    unknown,
    where,
)
from trainguard.subjects.units import format_bytes


@invariant("memory", needs=("peak",), per="dtype")
def peak_is_within_budget(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    The step never holds more than the budget's peak.

    Judges: two training steps, forward, backward and optimizer, in bytes held at the highest moment
        after the model was built: predicted on fake tensors, or measured where they do not do. A
        step that runs out of memory is broken whatever the budget, with what it held by then.
    Allows: the declared `peak`, to the byte.
    Misses: the scratch space of kernels, the context of the device, buffers of collectives, and
        the fragmentation of the allocator: leave them some room, 1 to 2 GiB on CUDA.
    Why: a step that does not fit is found by crashing, after the queue and hours into the run.
    Source: a post-mortem: 22 GiB were used where 8 to 12 had been estimated.
    """
    limit, stop = trace.promise("budget:peak"), find_stop(trace)
    for seen in of(trace, "peak"):
        if limit is None or (stop is None and seen.measured <= limit):
            continue
        if seen.measured <= limit and (stop is None or not stop.count):
            unknown(stop, "whether its peak is within the budget")
            continue
        measured, allowed = amounts(seen.measured, limit)
        held = f"at the peak: {largest(trace, 'category')}"
        what = "takes more memory than its budget"
        if stop is not None:
            measured = f"at least {measured}"
        if stop is not None and stop.count:
            what = "runs out of memory"
            held = f"{_describe_refusal(stop)}; {held}"
        yield Finding(
            f"{step(trace)} {what}",
            where(seen),
            f"{measured}, {describe_source(seen)}",
            f"{allowed}, the budget's peak",
            why=held,
            source=seen.source,
            event=seen,
        )


@invariant("memory", needs=("category",), per="dtype")
def category_is_within_budget(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    No category of memory comes to more than the budget gives it.

    Judges: two training steps, each category that has a limit at its own highest moment:
        parameters, gradients, the optimizer's state, activations, temporaries, buffers, inputs and
        averaged copies.
    Allows: the declared limit of that category, to the byte.
    Misses: what no operation of torch allocates; a tensor that is kept under a name of the team's
        own counts as an activation or as something temporary.
    Why: a total says that memory is short, a breakdown says of what: 2 GiB of activations that
        should be 200 MiB are an attention matrix or a cast that nobody meant to keep.
    Source: post-mortems: an estimate without a breakdown; an averaged copy of all parameters; an
        embedding with a row for each of 65,536 values.
    """
    stop, found = find_stop(trace), False
    for seen in of(trace, "category"):
        limit = trace.promise(f"budget:{seen.place}")
        if limit is None or seen.measured <= limit:
            continue
        found = True
        measured, allowed = amounts(seen.measured, limit)
        yield Finding(
            f"the {_pluralize(seen.place)} of {step(trace)} take more memory than their budget",
            where(seen),
            f"{'at least ' if stop else ''}{measured}, {describe_source(seen)}",
            f"{allowed}, the budget's {seen.place}",
            why=_parts(trace, seen.place),
            event=seen,
        )
    if not found:
        unknown(stop, "whether its categories are within the budget")


def _describe_refusal(stop: Usage) -> str:
    """Say what the allocator refused."""
    more = (
        f"it was refused {format_bytes(stop.reference)} more"
        if stop.reference
        else "it was refused"
    )
    return f"{more} while it held {format_bytes(stop.measured)}"


def _pluralize(category: str) -> str:
    """Write a category as what there are several of."""
    return {"optimizer": "state tensors of the optimizer", "averages": "averaged copies"}.get(
        category, category
    )


def _parts(trace: Trace[Usage], category: str) -> str:
    """List the modules that hold most of a category at the peak of the step."""
    mine = [seen for seen in of(trace, "module") if seen.place.endswith(f", {category}")]
    parts = sorted(mine, key=lambda seen: -seen.measured)[:3]
    names = [
        f"{seen.place.removesuffix(f', {category}')} {format_bytes(seen.measured)}"
        for seen in parts
    ]
    return f"at the peak of the step: {', '.join(names)}" if names else ""
