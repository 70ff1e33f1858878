"""Judgements of the peak of a training step: its budget, each element, promised savings."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import number
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import (
    amounts,
    describe_source,
    find_stop,
    largest,
    percent,
    step,
    unknown,
    where,
)
from trainguard.invariants.wording import of
from trainguard.subjects.units import format_bytes

_SWITCH = "its checkpoint"


@invariant("memory", needs=("peak",), per="dtype")
def peak_is_within_budget(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    The peak memory of a step stays within its budget.

    Judges: two training steps, forward, backward and optimizer, in bytes held at the highest moment
        after the model was built: predicted on fake tensors, or measured where they do not do. A
        step that runs out of memory is broken whatever the budget, with what it held by then.
    Allows: the declared `peak`, to the byte.
    Misses: the scratch space of kernels, the context of the device, buffers of collectives, and
        the fragmentation of the allocator: leave them some room, 1 to 2 GiB on CUDA.
    Why: a step that does not fit is found by crashing, after the queue and hours into the run.
    Source: PyTorch, Understanding CUDA Memory Usage
        (docs.pytorch.org/docs/stable/torch_cuda_memory.html).
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
            measured = "at least " + measured
        if stop is not None and stop.count:
            what = "runs out of memory"
            held = f"{_describe_refusal(stop)}; {held}"
        yield Finding(
            f"{step(trace)} {what}",
            where(seen),
            measured + f", {describe_source(seen)}",
            allowed + ", the budget's peak",
            why=held,
            event=seen,
        )


@invariant("memory", needs=("category",), per="dtype")
def category_is_within_budget(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    Each category of memory, such as activations, stays within its budget.

    Judges: two training steps, each category that has a limit at its own highest moment:
        parameters, gradients, the optimizer's state, activations, temporaries, buffers, inputs and
        averaged copies.
    Allows: the declared limit of that category, to the byte.
    Misses: what no operation of torch allocates; a tensor that is kept under a name of the team's
        own counts as an activation or as something temporary.
    Why: a total says that memory is short, a breakdown says of what: 2 GiB of activations that
        should be 200 MiB are an attention matrix or a cast that nobody meant to keep.
    Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 3: where did all the memory go?
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
            ("at least " if stop else "") + measured + f", {describe_source(seen)}",
            allowed + f", the budget's {seen.place}",
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


@invariant("memory", probe="element", needs=("per_element",), per="dtype")
def loss_memory_per_element_is_bounded(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    The memory of a loss per input element stays within its budget.

    Judges: one call of the loss, forward and backward: the bytes held at the highest moment, its
        inputs apart, for each element of its largest input. Judged is the smaller of two numbers,
        the average and what each element of a batch twice as large adds, so that neither a table
        of constant size nor the pairs within a batch are taken for intermediates.
    Allows: the declared `per_element`.
    Misses: the scratch space of kernels; intermediates inside of one fused kernel.
    Why: a float32 intermediate is 4 bytes for each element, and a likelihood written out in a
        dozen lines keeps a dozen of them until the backward pass: more than the model that feeds
        it, at the length of a recording.
    Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (arXiv 2411.09009).
    """
    limit = trace.promise("budget:per_element")
    for seen in of(trace, "element"):
        measured = min(seen.measured, seen.reference)
        if limit is not None and measured > limit:
            yield Finding(
                f"{step(trace)} holds more memory for each element than its budget",
                where(seen),
                number(measured, "B", ".1f")
                + f" for each of {seen.of:,} elements of `{seen.place}`,"
                f" {describe_source(seen)}",
                number(limit, "B", ".1f") + ", the budget's per_element",
                why=f"it holds {format_bytes(seen.count)} above its inputs;"
                " a float32 intermediate of that size is 4 B for each element",
                event=seen,
            )


@invariant("memory", probe="saving", needs=("saving",))
def saving_is_real(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    A promised memory saving, as by activation checkpointing, is achieved.

    Judges: the peak of a training step with the model's `checkpoint` against the one without, or
        the peak of this subject against that of the subject `against`, both at the sizes of the
        budget and both predicted, or both measured.
    Allows: the declared `saving`, a share of the larger peak. Where `at` gives no sizes and even a
        step without any activation would not save that much, it is a note: small models are all
        parameters.
    Misses: what is saved or spent outside of the step, and the time that it costs.
    Why: a switch that reaches none of the layers changes nothing and says nothing; 30 to 50 % are
        quoted for activation checkpointing, and hold for what activations are most of.
    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174).
    """
    promised = trace.promise("budget:saving")
    for seen in of(trace, "saving"):
        saved = seen.reference - seen.measured
        if promised is None or saved >= int(promised * seen.reference):
            continue
        switch = seen.place == _SWITCH
        beyond_reach = switch and seen.count < promised * seen.reference
        small = beyond_reach and trace.promise("budget:sized") is None
        yield Finding(
            f"{step(trace)} does not save the memory that is promised of {seen.place}"
            if switch
            else f"{step(trace)} does not take as much less memory than {seen.place} as promised",
            where(seen),
            percent(saved / seen.reference)
            + (
                f" less: {format_bytes(seen.measured)} instead of "
                f"{format_bytes(seen.reference)}, {describe_source(seen)}"
            ),
            percent(promised) + " less or more",
            why=_why(trace, seen, beyond_reach),
            rank=Rank.NOTE if small else Rank.BROKEN,
            event=seen,
        )


def _why(trace: Trace[Usage], seen: Usage, beyond_reach: bool) -> str:
    """Say what stands in the way: no activations that could be saved, or which category stayed."""
    if beyond_reach:
        share = percent(seen.count / seen.reference)
        return (
            f"activations and temporaries are only {share} of the peak without it;"
            " give the sizes that it is trained at in at={...}"
        )
    changes = sorted(of(trace, "category"), key=lambda one: -one.reference)[:3]
    parts = [
        f"{c.place} {format_bytes(c.measured)} instead of {format_bytes(c.reference)}"
        for c in changes
    ]
    unchanged = " (nothing changed: it may reach no module)" if _alike(trace) else ""
    return f"at the peaks: {', '.join(parts)}{unchanged}"


def _alike(trace: Trace[Usage]) -> bool:
    """Say whether every category is exactly what it was."""
    return all(one.measured == one.reference for one in of(trace, "category"))
