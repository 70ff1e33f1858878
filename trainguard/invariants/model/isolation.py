"""Judgements of what an output may depend on: its own sample, its past, and what is not padding."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, sizes, worst
from trainguard.invariants.wording import number, of

_ROUNDING = 1e-5


@invariant("model", probe="samples", needs=("batch",))
def samples_do_not_mix(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The output for a sample does not depend on the other samples of its batch.

    Judges: in evaluation mode, the outputs of one sample. One backward pass says which inputs reach
        them; what it suspects is edited in all other samples, and the outputs are compared.
    Allows: a change of 1e-5 of the largest output (limit); batch norm that has running statistics.
        Rows that are no samples of their own, as in a set or a graph, are declared with another
        dimension than B.
    Misses: mixing in training mode only, mixing through what has no gradient such as an argmax,
        and outputs in which the batch has no axis of its own.
    Why: a softmax, a mean or a view over the wrong dimension makes a prediction depend on its
        company, and the loss falls all the same.
    Source: Karpathy, "A Recipe for Training Neural Networks" (use backprop to chart dependencies);
        perone/euclidesdb issue 2 (softmax over the batch).
    """
    yield from _dependent(
        trace,
        "mixed",
        "samples_do_not_mix",
        "an output of one sample depends on the others in `{}`",
        "perhaps a softmax, a maximum, a mean, a norm or a view over the batch",
    )


@invariant("model", probe="future", needs=("causal",))
def future_does_not_leak(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The outputs of a causal model do not depend on later inputs.

    Judges: in evaluation mode, the outputs before a position near the middle of the declared
        dimension. One backward pass says which inputs reach them; what it suspects is edited from
        there on. The position is no end of a block of two, three or a divisor of the length.
    Allows: a change of 1e-5 of the largest output (limit): what a convolution by FFT rounds.
    Misses: outputs that are shorter or longer than the inputs; what has no gradient; the loss, and
        with it targets that are not shifted.
    Why: a model that sees what it is to predict learns to copy, with a wonderful loss.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): use backprop to chart dependencies.
    """
    yield from _dependent(
        trace,
        "future",
        "future_does_not_leak",
        "an earlier output of `{}` depends on a later input",
        "perhaps a mask that is missing or one off, padding on both sides of a convolution, or a"
        " norm or mean over the sequence",
    )


@invariant("model", probe="relations", needs=("relations",))
def relations_hold(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The declared relations between the outputs for original and edited inputs hold.

    Judges: `then(before, after)` of each `tg.Relation`, on what the model returns in evaluation
        mode for drawn inputs and for the same inputs edited, 8 batches for each size.
    Allows: what `then` allows.
    Misses: inputs that were not drawn; training mode.
    Why: what must hold between two calls needs no right answer: flipped images flip boxes, and
        permuted points of a set change nothing.
    Source: Chen et al., Metamorphic Testing (arXiv 2002.12543).
    """
    for seen in worst(of(trace, "relation"), lambda seen: seen.measured):
        if seen.measured:
            yield Finding(
                f"the relation {seen.place!r} of `{trace.subject}` is broken",
                ", ".join(part for part in (seen.at, sizes(seen)) if part),
                seen.detail,
                "what then(before, after) allows",
                event=seen,
            )


@invariant("model", probe="padding", needs=("padding",))
def padding_is_ignored(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Padded positions, and how many there are, do not affect the outputs that are kept.

    Judges: in evaluation mode, outputs at positions that are kept, and outputs of whole samples.
        One backward pass says which inputs reach them; what it suspects is edited where it is
        padded, as `padding=` says by a tg.mask or by the lengths of the samples. And outputs of
        whole samples where the padding of one is cut off.
    Allows: a change of 1e-5 of the largest output (limit).
    Misses: the loss; outputs whose length is not that of the mask; the statistics of training mode.
    Why: a mean over the padded length, or attention without the mask, makes a prediction depend on
        how long the other samples of the batch are.
    Source: PyTorch, torch.nn.MultiheadAttention (key_padding_mask); transformers' troubleshooting
        page, "Incorrect output when padding tokens aren't masked".
    """
    found = [
        *_dependent(
            trace,
            "padding",
            "padding_is_ignored",
            "an output of `{}` depends on what stands in padded positions",
            "perhaps attention, a mean or a maximum without the mask, or a convolution that reaches"
            " over the end",
        )
    ]
    yield from found or _dependent(
        trace,
        "padded length",
        "padding_is_ignored",
        "an output of `{}` depends on how far a sample is padded",
        "perhaps a sum is divided by the padded length, or attention reads padding that is the same"
        " whatever it holds, as with an inverted mask, or one of lengths before a stride",
    )


def _dependent(
    trace: Trace[Pass], quantity: str, name: str, summary: str, why: str
) -> Iterator[Finding]:
    """Yield a finding for the output that depends most on what it must not depend on."""
    limit = trace.limit(name, _ROUNDING)
    broken = [seen for seen in of(trace, quantity) if seen.measured > limit]
    found = sorted(worst(broken, lambda seen: seen.measured), key=lambda seen: -seen.measured)
    for seen in found[:1]:
        yield Finding(
            summary.format(trace.subject),
            f"{format_place(seen)}, {seen.at}, {sizes(seen)}",
            "changed by " + number(seen.measured) + " of the largest output",
            "changed by " + number(limit) + " of the largest output",
            why=f"{why}; first seen in {seen.detail}" if seen.detail else why,
            event=seen,
            elsewhere=tuple(map(format_place, found[1:])),
        )
