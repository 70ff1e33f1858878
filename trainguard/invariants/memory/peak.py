"""Judgements of the highest moment of a step, and of each category in it."""

from collections.abc import Iterator

from trainguard.catalogue import invariant
from trainguard.finding import Finding
from trainguard.invariants.memory.wording import amounts, largest, of, where
from trainguard.trace import Trace, Usage


@invariant("memory", needs=("peak",), per="dtype")
def peak_is_within_budget(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    The step never holds more than the budget's peak.

    Judges: two training steps, forward, backward and optimizer, in bytes held at the highest moment
        after the model was built: predicted on fake tensors, or measured where they do not do.
    Allows: the declared `peak`, to the byte.
    Misses: the scratch space of kernels, the context of the device, buffers of collectives, and
        the fragmentation of the allocator: leave them some room, 1 to 2 GiB on CUDA.
    Why: a step that does not fit is found by crashing, after the queue and hours into the run.
    Source: a post-mortem: 22 GiB were used where 8 to 12 had been estimated.
    """
    limit = trace.promise("budget:peak")
    for seen in of(trace, "peak"):
        if limit is not None and seen.measured > limit:
            measured, allowed = amounts(seen.measured, limit)
            yield Finding(
                f"a training step of `{trace.subject}` takes more memory than its budget",
                where(seen),
                f"{measured}, {seen.how}",
                f"{allowed}, the budget's peak",
                why=f"at the peak: {largest(trace, 'category')}",
                source=seen.source,
                event=seen,
            )
