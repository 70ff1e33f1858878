"""The invariant of good conduct: a call does nothing but return a loss."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Sample, Trace


@invariant("loss", probe="conduct", per="device")
def call_leaves_no_trace(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Calling the loss has no side effects.

    Judges: calls on one plain point of each structure: the inputs afterwards, global settings of
        PyTorch, the global random streams, what was printed and what was warned.
    Allows: no edit of an input, no changed setting, no reseeding; printing and warning are notes.
    Misses: what is changed outside PyTorch; what only some inputs bring about.
    Why: an input edited in place changes the model's output behind its back, and a seed set in a
        loss makes every augmentation draw the same numbers.
    Source: PyTorch's notes on autograd, in-place operations
        (docs.pytorch.org/docs/stable/notes/autograd.html).
    """
    for sample in trace:
        told, where, measured, allowed, why = _CONDUCT[sample.quantity]
        yield Finding(
            f"`{trace.subject}` {told}",
            at=where.format(sample.input),
            measured=measured or sample.label,
            allowed=allowed,
            why=why,
            rank=Rank.BROKEN if allowed else Rank.NOTE,
            event=sample,
        )


# What a call may do besides: what is said of it, its place, what is measured, allowed, guessed.
_CONDUCT = {
    "mutated": (
        "edits its input in place",
        "{}",
        "edited by the call",
        "the numbers that were passed in",
        "perhaps clamp_, mul_, += or an edit of .data; work on a copy",
    ),
    "changed": (
        "leaves a global setting changed",
        "{}",
        "",
        "as it was before the call",
        "set it once where the program starts, or put it back before returning",
    ),
    "reseeded": (
        "seeds a global random stream",
        "the stream of {}",
        "the same after calls that began with different seeds",
        "a state that follows from the seed before the call",
        "draw from a generator of its own, such as torch.Generator().manual_seed(0)",
    ),
    "printed": ("prints", "{}", "", "", ""),
    "warned": ("warns", "{}", "", "", ""),
}
