"""Judgement of the memory that a loss takes for each element of its inputs."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import describe_source, of, step, where
from trainguard.subjects.units import format_bytes


@invariant("memory", probe="element", needs=("per_element",), per="dtype")
def loss_memory_per_element_is_bounded(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    A loss holds no more memory for each element than its budget gives it.

    Judges: one call of the loss, forward and backward: the bytes held at the highest moment, its
        inputs apart, for each element of its largest input. Judged is the smaller of two numbers,
        the average and what each element of a batch twice as large adds, so that neither a table
        of constant size nor the pairs within a batch are taken for intermediates.
    Allows: the declared `per_element`.
    Misses: the scratch space of kernels; intermediates inside of one fused kernel.
    Why: a float32 intermediate is 4 bytes for each element, and a likelihood written out in a
        dozen lines keeps a dozen of them until the backward pass: more than the model that feeds
        it, at the length of a recording.
    Source: a post-mortem: a mixture loss held full-size intermediates for every component.
    """
    limit = trace.promise("budget:per_element")
    for seen in of(trace, "element"):
        measured = min(seen.measured, seen.reference)
        if limit is not None and measured > limit:
            yield Finding(
                f"{step(trace)} holds more memory for each element than its budget",
                where(seen),
                f"{measured:.1f} B for each of {seen.of:,} elements of `{seen.place}`,"
                f" {describe_source(seen)}",
                f"{limit:.1f} B, the budget's per_element",
                why=f"it holds {format_bytes(seen.count)} above its inputs;"
                " a float32 intermediate of that size is 4 B for each element",
                source=seen.source,
                event=seen,
            )
