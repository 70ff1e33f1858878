"""Judgements of the loss functions that a run calls: what they are given, and how they pull."""

from collections.abc import Iterator
from math import isfinite, prod

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Term
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FUNCTIONS, either, has_answer, has_probe
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import events, in_line, line_of_origin, percent
from trainguard.invariants.wording import number

_FEW = 3
_RARE = 0.01
# What a divergence may take a number for, as the observer counts them.
_CLAIMS = (
    "the logarithm of a variance",
    "the logarithm of a deviation",
    "a variance",
    "a deviation",
)


@invariant("loop", evidence=FUNCTIONS)
def components_are_balanced(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The gradient of no loss term is dwarfed by that of another term.

    Judges: the gradient of each term against that of the largest, in at least 2 probed steps, in
        runs with several terms. What is found is a note.
    Allows: a thousandth (limit: the ratio, 1000), or a thousandth in any one of the steps; terms
        that pull at nothing at all, which may be switched off.
    Misses: terms that are added up before a loss function is called, or are none of torch's.
    Why: with equal weights and unequal scales the largest term is the only one that is learned.
    Source: Chen et al., GradNorm (arXiv 1711.02257).
    """
    ratio = trace.limit("components_are_balanced", 1e3)
    pulls = {
        term: [share for share in term.shares if isfinite(share)]
        for term in events(trace, Term)
        if not term.evaluation
    }
    probed = {term: shares for term, shares in pulls.items() if len(shares) >= 2}
    for term, shares in probed.items():
        if len(probed) >= 2 and 0 < max(shares) < 1 / ratio:
            yield note(
                f"a term of the loss of `{trace.subject}` is drowned by another",
                term.function,
                number(max(shares))
                + f" of the largest term's gradient, at most in {len(shares)} steps",
                number(1 / ratio),
                why="perhaps inputs of different scales, or weights that do not make up for them",
                event=term,
            )


@invariant(
    "loop",
    evidence=either(
        has_answer(
            "terms without a graph",
            "nothing without a graph was added to a loss that was asked about",
        ),
        has_probe("itself", "-"),
    ),
)
def terms_have_a_graph(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Loss terms that depend on trained parameters pass gradients to them.

    Judges: steps that a forked child made again up to the backward pass, as they are and with other
        parameters: numbers without a graph, or one for each sample, that are added to what is
        handed to backward, and are then other numbers. What is found is a note. Broken is a loss
        function of torch that compares what has no graph with itself, in each of its first 8 calls
        where graphs are built, if something without a graph is added to a loss; else a note.
    Allows: constants, and what is made of targets, of a teacher, or of parameters that are frozen;
        numbers that were detached as such, to be reported; what is made of weights that multiply
        what learns, such as the entropy of responsibilities.
    Misses: terms that are computed before the model is called, or added up in a list that is
        stacked; weights of another network; accelerators.
    Why: a balance made of counts, a sparsity made of comparisons, a penalty on `.data` or `.item()`
        is part of the loss that is shown, and moves no parameter.
    Source: Shazeer et al., Outrageously Large Neural Networks (arXiv 1701.06538), appendix A: the
        number of samples of an expert is a discrete quantity, and needs a smooth estimator.
    """
    for probe in events(trace, Probe):
        if probe.probe == "itself":
            yield _describe_itself(trace, probe)
    for answer in answers_to(trace, "terms without a graph"):
        if answer.measured > 0:
            plain, other = answer.numbers
            yield note(
                f"a term of the loss of `{trace.subject}` has no graph",
                at_step(answer.step),
                number(plain) + f", {number(other)} with other parameters, and it moves none",
                "a term that moves what it depends on",
                why="perhaps it is made of counts, argmax, comparisons or numbers (.item(),"
                " .data), or under no_grad: what is added to the loss has to keep its graph",
                event=answer,
                source=answer.smallest or answer.source,
            )
            return


def _describe_itself(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a term that compares something with itself."""
    return Finding(
        f"both sides of a loss of `{trace.subject}` are the same, and without a graph",
        "both sides of one call",
        "the same, and without a graph, " + portion(probe.measured, probe.measured, "times"),
        "one side of what learns",
        why="perhaps both come from a teacher, and one should come from the student",
        rank=Rank.BROKEN if probe.reference else Rank.NOTE,
        event=probe,
    )


@invariant(
    "loop",
    evidence=has_answer("scale of noise", "no noise was multiplied by a scale that is learned"),
)
def noise_has_the_scale_of_its_divergence(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Reparameterised noise is scaled by the same standard deviation that the KL term uses.

    Judges: steps that a forked child made again up to the backward pass: sums of a mean and of
        normal noise times a scale, both learned, of 16 numbers or more, and what pulls at them
        besides the sample. A divergence of normal distributions pulls at a deviation s by
        s / v - 1 / s, where its second derivative by the mean is 1 / v.
    Allows: that pull, within 0.1 % of its norm, whatever the divergence is weighed by and whichever
        prior it has; any pull but that of a divergence which takes the scale, or what it was made
        from, for a variance, or for the logarithm of one, or of a deviation.
    Misses: divergences that are averaged over samples, bounded, or masked; scales that are nearly
        the same everywhere, or far below those of the prior; several samples of one mean.
    Why: `exp(logvar)` is the variance: without `0.5 *` the noise has another size than the
        distribution whose divergence is in the loss, and samples of the prior look like nothing.
    Source: Kingma and Welling, Auto-Encoding Variational Bayes (arXiv 1312.6114), appendix B.
    """
    for answer in answers_to(trace, "scale of noise"):
        if answer.measured > 0:
            claim = _CLAIMS[int(answer.numbers[0])]
            yield Finding(
                f"noise in `{trace.subject}` has another scale than its divergence says",
                at_step(answer.step),
                portion(answer.measured, answer.reference, "scales")
                + f" of noise are made of what the divergence takes for {claim}",
                "a deviation on both sides",
                why="noise is multiplied by the deviation: torch.exp(0.5 * logvar) of the logarithm"
                " of a variance, the root of a variance",
                event=answer,
                source=answer.smallest or answer.source,
            )
            return


@invariant(
    "loop",
    evidence=has_answer(
        "batch divided", "no batch was drawn for a loss of several terms, or by hand"
    ),
)
def terms_are_reduced_alike(trace: Trace[Event]) -> Iterator[Finding]:
    """
    All terms of a loss are reduced over the batch alike, by sum or by mean.

    Judges: a batch that a forked child learned from whole, in halves and in quarters, without
        moving anything: what of its loss grows with the number of samples, and what does not,
        where the two explain all seven losses to 1e-4. What is found is a note.
    Allows: 1 % of either; terms that do not depend on the samples, as penalties of weights.
    Misses: losses whose samples depend on each other (negatives of the batch, roots and ratios of
        sums, batch norm), random numbers that are not normal, batches that neither a loader nor an
        order of rows draws, or that hold anything but a row for each sample.
    Why: a mean beside a sum is smaller by the number of samples: the sum drowns it, and a weight
        that was found for one batch size is wrong for another, as for the last of an epoch.
    Source: PyTorch examples, VAE (both terms are sums); Burgess et al., Understanding disentangling
        in beta-VAE, 2018.
    """
    for answer in answers_to(trace, "batch divided"):
        if _RARE < answer.measured < 1 - _RARE:
            yield note(
                f"the loss of `{trace.subject}` is a mean over the samples and a sum over them",
                at_step(answer.step) + f", {answer.label}",
                percent(answer.measured)
                + f" of it is a sum ({number(answer.numbers[1])}), the rest a mean"
                f" ({number(answer.numbers[0])})",
                "one of the two",
                why="the weights of the terms depend on the size of the batch: divide the sum by"
                " the number of samples, or add up the mean",
                event=answer,
                source=answer.source,
            )
            return


@invariant("loop", evidence=FUNCTIONS)
def classes_keep_their_axis(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A reshape before a loss keeps the class scores of each prediction together.

    Judges: inputs of cross_entropy and nll_loss that were viewed in another shape: whether the
        scores that stand in the dimension of the classes stood in one dimension before, or in
        several whole ones.
    Allows: dimensions that are split, merged or left out of the view.
    Misses: dimensions whose sizes fit by chance; views before the last layer; labels.
    Why: view() and reshape() go by the order in memory: (batch, time, classes) in the shape
        (batch, classes, time) has the right shape and mixes scores of different times.
    Source: pytorch.org/docs/stable/generated/torch.Tensor.view.html; use transpose or permute.
    """
    for term in events(trace, Term):
        scores = term.function in ("cross_entropy", "nll_loss") and len(term.input) > 1
        if scores and term.viewed and not _keeps_classes(term.viewed, term.input):
            yield Finding(
                f"a view before {term.function} of `{trace.subject}` mixes scores of different"
                " predictions",
                f"input of shape {term.input}",
                f"{term.viewed} viewed as {term.input}",
                "the classes of one prediction beside each other",
                why="view() and reshape() do not exchange dimensions: use transpose(1, 2) or"
                " permute(), and reshape after that",
                event=term,
            )


def _keeps_classes(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Say whether both ends of the dimension of classes lie where a dimension may be split."""
    if not prod(before) or not prod(after):
        return True
    inner = prod(after[2:])
    ends = [(prod(before[place:]), prod(before[place + 1 :])) for place in range(len(before))]
    return all(
        any(whole % size == 0 and size % part == 0 for whole, part in ends)
        for size in (inner, inner * after[1])
    )


@invariant("loop", evidence=either(FUNCTIONS, has_probe("broadcast", "-")))
def loss_inputs_do_not_broadcast(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss compares each output with its own target, without broadcasting to all pairs.

    Judges: loss functions whose input and target have as many elements and different dimensions, in
        every call; losses by hand that reduce more pairs than there are outputs or chosen values,
        or N terms times a table made of two vectors; outputs made of (N, 1) and (N,).
    Allows: one side expanded to the other; tables of pairs made on purpose from shapes with as many
        dimensions, such as (N, 1) and (1, N); weights that are symmetric, or of few values.
    Misses: batches of one sample; losses by hand where nothing was probed.
    Why: (N, 1) against (N,) is a table of all pairs: the model learns to predict the mean.
    Source: pytorch/pytorch issue 16045 and pull request 18349.
    """
    for term in events(trace, Term):
        alike = prod(term.input) == prod(term.target) and len(term.input) != len(term.target)
        if 0 < term.calls == term.broadcasts and alike:
            yield Finding(
                f"{term.function} of `{trace.subject}` compares all outputs with all targets",
                f"in {term.calls} of {term.calls} calls",
                f"input {term.input}, target {term.target}",
                "the same shape for both",
                why="squeeze the last dimension of the one, or unsqueeze the other",
                event=term,
            )
    for probe in events(trace, Probe):
        if probe.probe == "broadcast" and probe.measured > probe.reference:
            yield Finding(
                f"the loss of `{trace.subject}` compares all outputs with all targets",
                probe.label,
                integer(probe.measured, "elements") + " in the mean",
                integer(probe.reference, "elements") + ", as many as outputs",
                why="perhaps (N, 1) against (N,); squeeze the one, or unsqueeze the other",
                event=probe,
            )
        elif probe.probe == "weighed crosswise":
            yield Finding(
                f"the loss of `{trace.subject}` multiplies each sample by the weights of all",
                probe.label,
                integer(probe.measured, "elements") + " in the mean",
                integer(probe.reference, "elements") + ", as many as samples",
                why="weights of (N, 1) against terms of (N,), or made of both: squeeze the one",
                event=probe,
            )


@invariant("loop", evidence=has_probe("ignored", "no loss was told of a class to ignore"))
def classes_are_not_ignored(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The `ignore_index` of a loss is not the index of a real class.

    Judges: cross_entropy and nll_loss with an ignore_index that is the number of a class, where
        targets are that number: whether a list of the names of classes, or of their numbers, calls
        it by a word that does not stand for padding; whether it is the number of the end of a
        sequence, and every sequence has it at its end. A note: names alone tell.
    Allows: a class by the name of padding, background, void or the like; 1 % of the targets.
    Misses: classes without names in the script.
    Why: a class that is left out is never learned: what was meant to be ignored is the padding.
    Source: mlabonne/llm-course issue 33; huggingface/trl pull request 6357.
    """
    for probe in events(trace, Probe):
        if probe.probe == "ignored" and probe.measured > _RARE * probe.reference:
            yield Finding(
                f"a class of `{trace.subject}` is left out of the loss as if it were padding",
                f"`{probe.label}`, whose number is the ignore_index"
                + in_line(line_of_origin(trace, "ignored class")),
                portion(probe.measured, probe.reference, "targets") + " are left out",
                "padding alone",
                why=f"`{probe.label}` is never learned: fill up targets with a number that is no"
                " class, such as -100, and give that as ignore_index",
                rank=Rank.NOTE,  # the values are those of a padding too: only names tell it apart
                event=probe,
            )
