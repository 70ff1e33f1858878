"""Judgements of a model in evaluation mode: it repeats itself, and leaves everything as it was."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, sizes, worst
from trainguard.invariants.wording import number, of

_ROUNDING = 1e-5
_KINDS = {"parameter": "a parameter", "buffer": "a buffer", "counter": "a counter"}


@invariant("model", probe="evaluation")
def evaluation_is_deterministic(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The same input gives the same output in evaluation mode.

    Judges: two calls of two copies with different random numbers.
    Allows: a difference of 1e-5 of the largest output (limit). Numbers that are drawn by anything
        but a dropout are a note: a model that samples does so on purpose.
    Misses: randomness that not every input brings about, and that of generators of its own.
    Why: dropout that is called as a function, with training=True, stays on whatever the mode is.
    Source: Coderx7/SimpleNet issue 2; mertyg/vision-language-models-are-bows issue 17.
    """
    limit = trace.limit("evaluation_is_deterministic", _ROUNDING)
    for seen in worst(of(trace, "repeat"), lambda seen: seen.measured)[:1]:
        if not seen.measured <= limit:
            dropout = "dropout" in seen.detail
            yield Finding(
                f"an evaluation of `{trace.subject}` gives another output each time",
                f"{format_place(seen)}, {sizes(seen)}",
                "differs by " + number(seen.measured) + " of the largest output",
                "differs by " + number(limit) + " of the largest output",
                why="perhaps F.dropout without training=self.training"
                if dropout
                else f"numbers are drawn by {seen.detail or 'the forward pass'} in evaluation too",
                rank=Rank.BROKEN if dropout else Rank.NOTE,
                event=seen,
            )


@invariant("model", probe="evaluation")
def evaluation_changes_nothing(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    A call in evaluation mode leaves the model and its inputs unchanged, and sets no seed.

    Judges: in evaluation mode without gradients: all parameters and all buffers that are saved,
        after a first call that may fill what is filled once; the mode of each module; the inputs;
        torch's random numbers, which a call must not seed; and whether the output for one input is
        the same after a call with another.
    Allows: buffers that are not saved, as caches are not. A count that goes on is a note, and so is
        an output that depends on the calls before, which a model that carries a state means.
    Misses: attributes that are no tensors; what happens in the first call only.
    Why: statistics that learn from the validation data, or a mode that a call switches, make each
        evaluation change the run that it is to watch.
    Source: dragen1860/MAML-Pytorch issue 4 (batch statistics updated at validation time).
    """
    for kind, word in _KINDS.items():
        for seen in worst(of(trace, kind), lambda seen: seen.measured)[:1]:
            yield Finding(
                f"an evaluation of `{trace.subject}` changes {word}",
                f"{format_place(seen)}, {sizes(seen)}",
                "moved by " + number(seen.measured) + " of its largest element",
                "moved by " + integer(0) + " of its largest element",
                why="perhaps statistics that are updated whatever the mode is: ask self.training",
                rank=Rank.NOTE if seen.quantity == "counter" else Rank.BROKEN,
                event=seen,
            )
    for seen in worst(of(trace, "mode"), lambda seen: seen.measured)[:1]:
        yield Finding(
            f"an evaluation of `{trace.subject}` changes the mode of a module",
            format_place(seen),
            f"in {seen.detail} mode after the call",
            "in the mode that it was in before",
            why="perhaps train() or eval() is called in forward",
            event=seen,
        )
    yield from _around(trace)
    limit = trace.limit("evaluation_changes_nothing", _ROUNDING)
    for seen in worst(of(trace, "carried"), lambda seen: seen.measured)[:1]:
        if not seen.measured <= limit:
            yield note(
                f"an output of `{trace.subject}` depends on the calls before",
                f"{format_place(seen)}, {sizes(seen)}",
                "differs by " + number(seen.measured) + " of the largest output",
                "differs by " + number(limit) + " of the largest output",
                why="a state or a cache is carried from one call to the next",
                event=seen,
            )


def _around(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for what an evaluation changes outside of the model."""
    for seen in worst(of(trace, "input"), lambda seen: seen.measured)[:1]:
        yield Finding(
            f"an evaluation of `{trace.subject}` edits its input",
            f"{format_place(seen)}, {sizes(seen)}",
            "moved by " + number(seen.measured) + " of its largest element",
            "moved by " + integer(0) + " of its largest element",
            why="an operation in place, such as x += 1 or x.clamp_(), works on the caller's batch",
            event=seen,
        )
    for seen in list(of(trace, "reseeded"))[:1]:
        yield Finding(
            f"an evaluation of `{trace.subject}` seeds the random numbers of the process",
            sizes(seen),
            "the same random state after calls with different ones",
            "random states that stay different",
            why="torch.manual_seed in forward repeats the same dropout and shuffling in every step;"
            " a torch.Generator of its own does not",
            event=seen,
        )
