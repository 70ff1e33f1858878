"""Judgements of a model at other sizes: a sample alone, and longer inputs."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, sizes, worst
from trainguard.invariants.wording import number, of

_ROUNDING = 1e-4


@invariant("model", probe="single", needs=("batch",))
def batch_size_one_works(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    A batch of one sample works, and gives the same output as in a larger batch.

    Judges: in evaluation mode, a batch of one: that it can be called, the shapes that come out, and
        the outputs against those of the same sample in a batch.
    Allows: a difference of 1e-4 of the largest output (limit). Batches that are declared never to
        have one sample, as by sizes={"B": (2, 8)}, and outputs that depend on the size of every
        batch, which samples_do_not_mix has.
    Misses: training mode, in which batch norm needs more than one.
    Why: squeeze() takes the batch dimension away too where it has one sample, and what comes after
        broadcasts; it shows in the last batch of an epoch, or when the model is served.
    Source: PyTorch, torch.squeeze (its warning about a batch dimension of size 1).
    """
    for seen in list(of(trace, "single fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be called with one sample",
            f"{seen.at}, {sizes(seen)}",
            seen.detail,
            "a call, as with more samples",
            why="perhaps squeeze() without a dimension, or statistics over the batch",
            event=seen,
        )
    yield from _find_reshaped(trace)
    yield from _off(trace)


def _find_reshaped(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for the output of one sample that has another shape."""
    for seen in worst(of(trace, "single shape"), lambda seen: seen.measured)[:1]:
        yield Finding(
            f"an output of `{trace.subject}` has another shape for one sample",
            f"{format_place(seen)}, {seen.at}, {sizes(seen)}",
            *_shapes(seen),
            why="perhaps squeeze() without a dimension, which takes the batch dimension too",
            event=seen,
        )


def _off(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for the output of one sample that is furthest from the one in a batch."""
    limit = trace.limit("batch_size_one_works", _ROUNDING)
    for seen in worst(of(trace, "single"), lambda seen: seen.measured)[:1]:
        if not seen.measured <= limit:
            yield Finding(
                f"an output of `{trace.subject}` for one sample is another one than in a batch",
                f"{format_place(seen)}, {seen.at}, {sizes(seen)}",
                "differs by " + number(seen.measured) + " of the largest output",
                "differs by " + number(limit) + " of the largest output",
                why="perhaps squeeze() without a dimension, and a broadcast after it",
                event=seen,
            )


@invariant("model", probe="longer", needs=("longer",))
def longer_inputs_work(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The model works with inputs as long as promised.

    Judges: a call in evaluation mode with the sizes of `longer=`: that it can be made, that the
        outputs follow the length, and that they are finite.
    Allows: outputs that do not follow the length at the usual sizes either.
    Misses: whether the outputs are any good there.
    Why: a table of positions that ends at the length of training fails, or is cut, when the model
        is first used on something longer.
    Source: Press et al., "Train Short, Test Long" (2021).
    """
    for seen in list(of(trace, "longer fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be called with the longer inputs that are promised",
            seen.at,
            seen.detail,
            "a call, as with shorter inputs",
            why="perhaps a table of positions or a mask of a fixed length",
            event=seen,
        )
    for seen in worst(of(trace, "longer shape"), lambda seen: seen.measured)[:1]:
        yield Finding(
            f"an output of `{trace.subject}` does not follow a longer input",
            f"{format_place(seen)}, {seen.at}",
            *_shapes(seen),
            why="perhaps the input is cut to the length of training",
            event=seen,
        )
    for seen in worst(of(trace, "longer"), lambda seen: seen.measured)[:1]:
        if seen.count:
            yield Finding(
                f"an output of `{trace.subject}` is not finite for a longer input",
                f"{format_place(seen)}, {seen.at}",
                portion(seen.count, seen.of, "elements"),
                portion(0, seen.of, "elements"),
                event=seen,
            )


def _shapes(seen: Pass) -> tuple[str, str]:
    """Return the shape that was found and the one that was expected."""
    found, _, expected = seen.detail.partition(" instead of ")
    return found, expected
