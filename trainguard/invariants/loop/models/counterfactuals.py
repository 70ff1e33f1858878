"""Judgements of what a step would have done, had something been different."""

from collections.abc import Iterator
from math import inf

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_answer, has_probe
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_LEAST_INPUTS = 2  # answers: a guidance that drops its condition now and then does so in one
_LEAK, _PERVASIVE = 0.05, 0.5  # of the places of other documents: experts that are full move few
_LEAST_ORDERS = 2  # answers: one batch may have labels of which nearly all are the same
_LEAST_LESSONS = 2  # answers, of 50 steps each: one batch may be an odd one
_BEATEN = 0.95  # of a constant's loss, as it was asked for
_MOVED = 0.1  # of the deviation between samples: convolutions see a little of what follows
_SURE = 0.5  # of it, that are certain: chance and habit make less of what a model has learned
_TOLD = 0.2  # the same where lengths came with the padding: twice what is worth a note
_LEAST_STEPS = 3  # answers, of 8 steps each: a loss that overshoots for a while does not do so
ALONE = "no optimizer made the steps alone, each of one backward pass"


def answers_to(trace: Trace[Event], question: str) -> list[WhatIf]:
    """Return the answers to a question, without those that are void or were given up."""
    asked = (event for event in events(trace, WhatIf) if event.question == question)
    return [event for event in asked if event.outcome == "answered"]


def with_entry(answer: WhatIf, shown: str = "") -> str:
    """Return what shows an influence, and where that is seen first, as far as it is known."""
    entry = f"first seen in {answer.enters}" if answer.enters else ""
    return "; ".join(part for part in (shown, entry) if part)


@invariant(
    "loop", evidence=has_answer("inputs edited", "no step called a module with editable inputs")
)
def inputs_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss and the gradients of a step depend on the model's inputs.

    Judges: steps that a forked child made again, with the elements of every input of the model in
        the opposite order, where the loss is one of torch and the model has a matrix that gets no
        gradient in either case.
    Allows: anything but the same loss, output and gradients to the last bit in every such step.
    Misses: one of several inputs that does not matter; an influence that is merely tiny.
    Why: where relus are dead, or a softmax runs over one number, every sample gets the same output,
        and nothing can be learned.
    Source: stats.stackexchange.com question 481881 (softmax over one output).
    """
    answers = answers_to(trace, "inputs edited")
    dead = [a for a in answers if a.measured == 0 and a.numbers == (1.0,)]
    if len(dead) >= _LEAST_INPUTS and len(dead) == len(answers):
        first = dead[0]
        yield Finding(
            f"the inputs of a model of `{trace.subject}` do not affect its loss",
            f"steps {', '.join(str(answer.step) for answer in dead)}",
            Measure(f"the same loss, output and gradients with {first.label}", len(dead), "steps"),
            "another loss, output or gradient",
            why="perhaps a softmax over a single output, or relus that are dead",
            event=first,
        )


@invariant(
    "loop",
    evidence=either(
        has_answer("padding edited", "no mask marked tokens as padding"),
        has_probe("padding cut", "-"),
        has_probe("padding cut late", "-"),
        has_probe("padding cut told", "-"),
    ),
    live=SOON,
)
def padding_does_not_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The outputs for a sample, and the loss, do not depend on padding.

    Judges: a step that a forked child made again with other tokens there, where a mask of the
        model's inputs marks one constant token at one end of rows of different lengths. As a note,
        outputs with one row for each sample when some of the padding at the ends of rows of tokens,
        or of features that are zero there, is cut off, on a copy in evaluation mode. Where batches
        are padded to different lengths that is no note, if after 100 steps the typical sample still
        changes by half of the deviation between samples, or by a fifth where lengths or a mask come
        with the batch, so that the model could have known.
    Allows: rounding, 1e-5 of the loss (1e-2 in dtypes of 8 to 11 bits). Of what is cut, a change of
        the typical sample of 10 % (limit) of the deviation between samples.
    Misses: padding without a mask in outputs for each place; models that convolve, recur or
        normalise over positions, where no padding can be cut; steps that look at the tokens for
        themselves, so that the edit would change more than padding.
    Why: a mask of the wrong polarity, or a mean over all positions, lets padding speak.
    Source: InseeFrLab/torchTextClassifiers pull request 92; yg211/bert_nli pull request 3.
    """
    for answer in answers_to(trace, "padding edited"):
        if answer.measured > answer.reference:
            yield Finding(
                f"padding changes the loss of `{trace.subject}`",
                at_step(answer.step) + f", {answer.label}",
                "changed by " + number(answer.measured),
                "at most " + number(answer.reference),
                smallest=with_entry(answer, answer.smallest),
                why="perhaps the mask has the wrong polarity (key_padding_mask: True is ignored),"
                " or a mean runs over padding too",
                event=answer,
            )
    share = trace.limit("padding_does_not_matter", _MOVED)
    least = {"padding cut late": max(share, _SURE), "padding cut told": max(share, _TOLD)}
    sure = [p for p in events(trace, Probe) if p.measured > least.get(p.probe, inf)]
    for probe in sure or events(trace, Probe):
        if probe.probe.startswith("padding cut") and probe.measured > share:
            yield Finding(
                f"what a model of `{trace.subject}` says of a sample depends on how much padding"
                " its batch gives it",
                at_step(probe.step) + f", {probe.label}",
                "the typical sample changes by " + percent(probe.measured) + " of the deviation"
                " between samples without " + integer(probe.reference, "places") + " of padding",
                "at most " + percent(share),
                why="perhaps a last state or a mean goes over the padding, or attention has no"
                " mask: take states at lengths - 1, pack sequences, or give the mask",
                rank=Rank.BROKEN if sure else Rank.NOTE,
                event=probe,
            )
            return


@invariant("loop", evidence=has_answer("a document edited", "no row held several documents"))
def documents_do_not_mix(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The outputs for a document do not depend on others packed into the same row.

    Judges: steps that a forked child made again with in each row a token in the middle of the first
        document edited, where an attention mask that the model is given has a block for each
        document: whether its outputs for the others change, twice. A note where positions that
        begin anew in a row are the only sign of documents.
    Allows: rounding, 1e-4 of the largest output (1e-1 in dtypes of 8 to 11 bits); for less than
        half of the places of the others it is a note.
    Misses: masks that the model makes itself, unless positions are given to it; documents told by
        separators alone; models that convolve, recur or normalise over places.
    Why: positions that begin anew do not keep attention within a document, and a mask in another
        order of samples and heads hides other places than it was made to hide.
    Source: Krell et al., Efficient Sequence Packing without Cross-contamination (arXiv 2107.02027);
        huggingface/transformers pull request 31629 (packing by position_ids).
    """
    answers = answers_to(trace, "a document edited")
    first = next((a for a in answers if a.measured > _LEAK * a.reference), None)
    if first is None:
        return
    masked = first.numbers == (1.0,)
    sure = masked and first.measured >= _PERVASIVE * first.reference
    yield Finding(
        f"outputs of `{trace.subject}` for a document depend on another in its row",
        at_step(first.step) + f", {first.label}",
        portion(first.measured, first.reference, "places") + " of other documents change",
        Measure(f"at most {percent(_LEAK)} of them", _LEAK * first.reference, "places"),
        smallest=with_entry(first, f"with another token there, {first.smallest} changes"),
        why="perhaps the mask is not used, or its samples and heads are in another order: (batch *"
        " heads, T, T) is mask.repeat_interleave(heads, 0)"
        if masked
        else "restarted positions do not keep documents apart: give a mask with a block for"
        " each document, or a kernel for sequences of several lengths",
        rank=Rank.BROKEN if sure else Rank.NOTE,
        event=first,
        source=first.source,
    )


@invariant(
    "loop",
    evidence=has_answer(
        "labels exchanged", "no loader that shuffles served labels beside the inputs"
    ),
)
def labels_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss depends on which label belongs to which sample.

    Judges: steps that a forked child made again with each label at the next sample, where a loader
        of torch drew them at random, the model's outputs differ, and one label that is replaced
        by another one changes the gradients.
    Allows: anything but the same loss and gradients within rounding (1e-4) in every such step;
        errors that pull all outputs alike, as far from their labels as they begin.
    Misses: labels that a module is given, or that are cast before the model is called.
    Why: where (N, 1) and (N,) expand to a table of all pairs, or both sides are averaged first,
        only the mean of the labels can be learned.
    Source: pytorch/pytorch issue 16045 and pull request 18349 (targets that broadcast).
    """
    answers = answers_to(trace, "labels exchanged")
    same = [answer for answer in answers if answer.measured == 0]
    if len(same) >= _LEAST_ORDERS and len(same) == len(answers):
        first = same[0]
        yield Finding(
            f"`{trace.subject}` ignores which label belongs to which sample",
            f"steps {', '.join(str(answer.step) for answer in same)}",
            Measure(f"the same loss and gradients with {first.label}", len(same), "steps"),
            "another loss, or other gradients",
            smallest=first.smallest,
            why="perhaps shapes (N, 1) and (N,) expand to a table of all pairs, or both sides are"
            " averaged over the batch",
            event=first,
        )


@invariant(
    "loop",
    evidence=has_answer("ignored labels edited", "no loader served labels with a mask for them"),
    live=SOON,
)
def ignored_labels_do_not_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Labels that a mask excludes do not affect the loss or its gradients.

    Judges: steps that a forked child made again with other labels there, where a loader of torch
        serves labels that are one constant exactly where a mask of their shape says, and that are
        different elsewhere.
    Allows: the same loss and gradients within rounding (1e-4). Where the labels matter that the
        mask leaves in, it is a note, and told only of a constant that is no label: not zero, and
        nowhere else.
    Misses: masks that are made in the step; steps that look for the constant themselves, or by
        `ignore_index`; labels that are cast before the model is called.
    Why: a mask of the wrong polarity trains on what stands for nothing, and on nothing else.
    Source: VectorInstitute/cyclops pull request 168; huggingface/trl pull request 1625.
    """
    for answer in answers_to(trace, "ignored labels edited"):
        kept, marks = answer.numbers or (1.0, 0.0)
        if answer.measured and (marks or not kept):
            yield Finding(
                f"labels that a mask leaves out are learned in `{trace.subject}`",
                at_step(answer.step) + f", {answer.label}",
                Measure("the step changes with other labels there", answer.measured, "steps")
                + ("" if kept else ", and not with other labels elsewhere"),
                "the same loss and gradients",
                smallest=with_entry(answer, answer.smallest),
                why="perhaps the mask is not applied to the loss"
                if kept
                else "perhaps the mask has the wrong polarity",
                rank=Rank.NOTE if kept else Rank.BROKEN,
                event=answer,
            )
            return


@invariant("loop", evidence=has_answer("the same batch again", ALONE))
def steps_lower_the_loss(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Repeated steps on one batch lower its loss.

    Judges: runs of 8 steps that a forked child made with one batch at one random state, early and
        later in the training, where the loss is one of torch's and one optimizer makes the steps.
        Whether the loss goes down at a hundredth of the rate tells a rate from a sign.
    Allows: a single step of them after which the loss is lower.
    Misses: batches that no loader of torch serves; steps with several backward passes.
    Why: where the sign of the gradients is wrong, or the rate far too high, each step makes it
        worse, whatever the curve of a noisy training looks like.
    Source: nothinglo/Deep-Photo-Enhancer issue 57.
    """
    answers = answers_to(trace, "the same batch again")
    worse = [a for a in answers if a.measured == a.reference > 0]
    if len(worse) >= _LEAST_STEPS and len(worse) == len(answers):
        first = worse[0]
        ends = f"{number(first.numbers[0])} -> {number(first.numbers[-1])}"
        yield Finding(
            f"each step of `{trace.subject}` makes the loss of its own batch higher",
            f"steps {', '.join(str(answer.step) for answer in worse)}",
            "higher after "
            + portion(sum(a.measured for a in worse), sum(a.reference for a in worse), "steps")
            + f" with one batch ({ends})",
            "lower after one of them at least",
            why=_FAULTS.get(
                first.enters, "perhaps the sign of the update is wrong, or the rate far too high"
            ),
            event=first,
        )


_FAULTS = {
    "sign": "at a hundredth of the rate it goes up too: the sign of the update is wrong",
    "rate": "at a hundredth of the rate it goes down: the rate is far too high",
}


def _are_answered(trace: Trace[Event]) -> str:
    """Return why a declared relation was not tried in any step; nothing where all were."""
    declared = trace.promises.get("relations")
    names = declared if isinstance(declared, tuple) else ()
    why = "no step called a module with a batch that can be edited"
    told = ((name, has_answer(f"relation {name!r}", why)(trace)) for name in names)
    return next((f"{name!r}: {missing}" for name, missing in told if missing), "")


@invariant("loop", needs={"relations"}, evidence=_are_answered, live=SOON)
def relations_hold(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The declared relations between a step and the same step on an edited batch hold.

    Judges: `then(before, after)` of each `tg.Relation`, on what the model returned and the loss in
        two forked children: one that went on with the batch edited, and one as it was. Up to three
        steps are asked.
    Allows: what `then` allows.
    Misses: what the tensors of the batch do not hold: what was computed from them before the model
        is called stays as it was.
    Why: a team knows what its data means: flipped images flip boxes, transposed audio keeps its
        labels.
    Source: Chen et al., Metamorphic Testing (arXiv 2002.12543).
    """
    for answer in events(trace, WhatIf):
        if answer.question.startswith("relation ") and answer.measured > 0:
            yield Finding(
                f"the {answer.question} of `{trace.subject}` is broken",
                at_step(answer.step) + f", {answer.label} edited",
                answer.smallest,
                "what then(before, after) allows",
                event=answer,
            )


@invariant("loop", evidence=has_answer("one batch learned", ALONE))
def one_batch_can_be_learned(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The model can overfit a single batch.

    Judges: fifty steps that a forked child made with one batch, where a loader of torch serves it,
        one optimizer makes the steps, the loss is that of one function of torch, and the model has
        ten parameters for each target. Where that does not bring the loss below that of the best
        constant, the same with ten and a hundred times the rate, a tenth of it, and with steps
        along the signs of the gradients.
    Allows: any of these that brings the loss to 0.95 of a constant's: then a rate was the matter.
    Misses: several terms, or backward passes for a step; models that learn less than they could.
    Why: where outputs do not depend on inputs, a target is expanded to all pairs, or the gradients
        go astray, no rate will help: the wiring is broken.
    Source: Karpathy, A Recipe for Training Neural Networks, 2019 ("overfit one batch");
        stats.stackexchange.com question 352036.
    """
    answers = answers_to(trace, "one batch learned")
    failed = [answer for answer in answers if answer.numbers == (0.0,)]
    if len(failed) >= _LEAST_LESSONS and len(failed) == len(answers):
        first = failed[0]
        yield Finding(
            f"a model of `{trace.subject}` cannot learn a single batch",
            f"steps {', '.join(str(answer.step) for answer in failed)}, {first.label}",
            "the lowest loss is " + number(first.measured),
            "below "
            + number(_BEATEN * first.reference)
            + f": {number(first.reference)} is the loss of the best constant",
            why="no rate helps: look at what outputs depend on, at the shapes that the loss is"
            " given, and at what becomes of the gradients",
            event=first,
        )


@invariant(
    "loop",
    evidence=has_answer(
        "terminal states edited", "no batch marked states as the last of their episode"
    ),
    live=SOON,
)
def terminal_states_end(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The states after a terminal state do not affect the loss.

    Judges: a step that a forked child made again with other states after those that are terminal:
        whether its loss is another. By name, a variable of zeros and ones marks the terminal
        states, and another one, which is given to a network, has the next states; by any name where
        it is given without a graph, and what is learned from is another table. A mask of ends that
        is one for three quarters of them, or more, marks what goes on.
    Allows: rounding, 1e-5 of the loss; ends that are marked as cut off; next states that are
        predicted, or learned from.
    Misses: batches in other variables, or in arrays; targets by the network that learns.
    Why: the value of a terminal state is zero: a target that looks beyond it learns from the first
        state of another episode, or from none at all.
    Source: Mnih et al. 2015, Human-level control through deep reinforcement learning, algorithm 1.
    """
    for answer in answers_to(trace, "terminal states edited"):
        if answer.measured > answer.reference:
            yield Finding(
                f"what comes after an episode's end changes the loss of `{trace.subject}`",
                at_step(answer.step) + f", {answer.label}",
                "changed by " + number(answer.measured),
                "at most " + number(answer.reference),
                smallest=answer.smallest,
                why="perhaps the target lacks a factor (1 - done)",
                event=answer,
            )
            return
