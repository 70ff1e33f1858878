"""Judgements of what gradients are for: what is computed is used, and by whom it is for."""

from collections.abc import Iterator, Sequence
from math import gcd

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import (
    FUNCTIONS,
    GRADIENTS,
    either,
    has_answer,
    has_probe,
    several_optimizers,
)
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import Course, courses, events, middle, most_of, tally

_LEAST_STEPS = 3  # a batch that is left out now and then, or a gradient that is looked at once
_LEAST_LEAKED = 16  # steps of an optimizer; a first phase may warm up with the losses of all
_WATCHED = 64  # of its first steps
_SEQUENCES = 2  # commas in the shape (B, C, T)
_LEAST_LOST = 8  # of a term that is always lost: models that take turns have fewer in a row


@invariant("loop", evidence=GRADIENTS)
def gradients_are_spent(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The gradients of a backward pass are used before they are cleared.

    Judges: passes backward whose gradients, at every optimizer that they reached, were set to None
        or zero before a step: in most of the steps, and in 3 of them or more.
    Allows: gradients that a line of the user's code has read, that a hook has seen, or of which one
        of several optimizers has made a step.
    Misses: gradients whose reading changes nothing, such as for a log; runs with hooks on them.
    Why: zero_grad inside the loop over micro-batches leaves the last of them to the step: the
        others are computed for nothing, and the gradient is smaller by their number.
        A term on a detached sample reaches the discriminator alone, which clears it.
    Source: bytetriper/RAE issue 67; tatsu-lab/alpaca_farm issue 57.
    """
    for probe in events(trace, Probe):
        if probe.probe == "in vain" and not probe.reference and probe.measured >= _LEAST_LOST:
            yield _describe_term(trace, probe)
    for course in courses(trace):
        made = [step for step in course.steps if step.norm > 0]
        vain = [step for step in made if step.thrown]
        if len(vain) < _LEAST_STEPS or not most_of(vain, made):
            yield from _left_over(trace, course, made, vain)
            continue
        lost = middle(step.thrown for step in vain)
        every = middle(step.thrown + max(1, len(step.losses)) for step in vain)
        yield Finding(
            f"`{trace.subject}` clears gradients that no step has used",
            course.at(vain[0]),
            Measure(f"{lost:g} of {every:g} passes", lost, "passes")
            + f" backward in vain, in {tally(vain, made)}",
            integer(0, "passes") + " backward in vain",
            why="zero_grad may stand inside the loop over micro-batches; it belongs before the"
            " first of them, or behind the step",
            event=vain[0],
            source=vain[0].thrown_source or vain[0].source,
        )


def _left_over(
    trace: Trace[Event], course: Course, made: Sequence[Step], vain: Sequence[Step]
) -> Iterator[Finding]:
    """Yield a note where each epoch ends with passes that are cleared before a step is made."""
    full = middle(len(step.losses) for step in made)
    short = [step for step in vain if 0 < step.thrown <= full > 1]
    if len(short) == len(vain) >= _LEAST_STEPS and _come_at_equal_distances(short, made):
        yield note(
            f"`{trace.subject}` clears the gradients of the last passes of each epoch unused",
            course.at(short[0]),
            integer(middle(step.thrown for step in short), "passes")
            + f" backward in vain, in {tally(short, made)}",
            integer(0, "passes") + f": a step is made from {full:g}",
            why="the batches of an epoch do not divide into whole windows of accumulation: make a"
            " step with what is left at its end",
            event=short[0],
            source=short[0].thrown_source or short[0].source,
        )


def _come_at_equal_distances(some: Sequence[Step], made: Sequence[Step]) -> bool:
    """Say whether steps come at equal distances, as far as those between them were watched."""
    first = some[0].step
    distance = gcd(*(step.step - first for step in some)) or 1  # all are of one step
    return len(some) == sum(s.step >= first and (s.step - first) % distance == 0 for s in made)


def _describe_term(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a term of a loss that no step makes use of."""
    kind, _, reached = probe.label.partition(" ")
    return Finding(
        f"a term of the loss of `{trace.subject}` moves nothing",
        f"{kind}, whose gradients reach {reached} alone",
        integer(int(probe.measured), "times") + " cleared before a step, of as many",
        integer(0, "times"),
        why=f"what {reached} was given may be detached: then the term reaches {reached} and not the"
        " model that is to learn from it",
        event=probe,
    )


@invariant("loop", evidence=several_optimizers)
def gradients_stay_with_their_loss(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An optimizer does not step with conflicting gradients left by another optimizer's loss.

    Judges: passes backward that reach two optimizers, one through the parameters of the other:
        whether what they leave at the one that does not step is still there when its own loss goes
        backward, in most of 16 of its first steps or more, and pulls against that.
    Allows: losses that pull the same way, as where a head steps with several of them.
    Misses: losses that come to what they are for by no way through the other's parameters.
    Why: the loss of a generator passes through the discriminator, and leaves gradients there that
        would make it worse at its task. They have to be cleared before its own loss goes backward.
    Source: Project-MONAI/GenerativeModels issue 102; FoundationVision/OmniTokenizer issue 15.
    """
    for probe in events(trace, Probe):
        seen = min(probe.reference, _WATCHED)
        if probe.probe != "leaked" or probe.measured < max(_LEAST_LEAKED, seen / 2):
            continue
        holder, user, backward = probe.label.rsplit(" ", 2)
        yield Finding(
            f"{holder} of `{trace.subject}` steps with the gradients of another optimizer's loss",
            at_step(probe.step) + f" of {holder}",
            portion(min(probe.measured, seen), seen, "steps")
            + f" also use those that the backward in {backward} left for {user}, and they pull the"
            " other way",
            "gradients of its own loss alone",
            why=f"nothing clears them in between: call zero_grad() of {holder} just before this"
            " backward, or detach what the other loss is not to reach",
            event=probe,
        )


_LEAST_UNREAD = 3  # of the steps that were looked at
_USUAL = 0.8  # of them: an evaluation that adapts to its tasks comes between a few


@invariant(
    "loop",
    evidence=either(
        has_probe("unread", "no gradients were computed with a graph"),
        has_answer("terms unread", "-"),
    ),
)
def gradients_with_a_graph_are_used(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradients computed with `create_graph=True` contribute to a loss.

    Judges: lines that call torch.autograd.grad with create_graph=True in nearly all steps (limit:
        0.8) of those looked at in the first 33, 3 or more, none of whose results is in the graph of
        anything that goes backward or whose gradients are taken. Broken where parameters of an
        optimizer were moved along them, in a variable that is there, and the loss goes backward
        through the parameters as they were; otherwise a note. In steps that a forked child made
        again up to the backward pass: numbers with a graph that the user's code puts into a
        variable which it has no place to read. What is found is a note.
    Allows: gradients of which a part is used, or in some steps; updates that are written into the
        parameters; numbers that are read in any place, if only to be logged; names that begin with
        an underscore.
    Misses: updates that torch.func or a library makes; what a helper computes for several terms;
        terms that are returned with others, kept in attributes or lists, or logged.
    Why: the loss of a meta-learner that is computed with the parameters before their adaptation
        falls as well, and learns nothing of how to adapt. A penalty of gradients that is left out
        of the sum has no effect at all, and the graph for it is built for nothing.
    Source: Finn et al. 2017 (MAML, algorithm 1, line 8); Guruprasad93/FlexibleMachineLearning issue
        3 (a term of the loss that is never added).
    """
    yield from _find_unread_terms(trace)
    usual = trace.limit("gradients_with_a_graph_are_used", _USUAL)
    for probe in events(trace, Probe):
        enough = max(_LEAST_UNREAD, usual * probe.reference)
        if probe.probe != "unread" or probe.measured < enough:
            continue
        rows = (
            "in " + portion(probe.measured, max(probe.measured, probe.reference), "steps"),
            "a part of the loss that goes backward",
        )
        if probe.label:
            yield Finding(
                f"the outer loss of `{trace.subject}` uses the parameters before adaptation",
                f"`{probe.label}`",
                "moved along gradients with a graph, and in no loss " + rows[0],
                rows[1],
                why="the forward pass of the outer loss may be given the model's own parameters"
                f" instead of `{probe.label}`",
                event=probe,
            )
        else:
            yield note(
                f"no loss of `{trace.subject}` has the gradients that are computed for one",
                "torch.autograd.grad(..., create_graph=True)",
                "in no loss " + rows[0],
                rows[1],
                why="a penalty may be left out of the sum; what is only logged needs no"
                " create_graph=True",
                event=probe,
            )


def _find_unread_terms(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note of numbers that are put into a variable which nothing reads."""
    told = {probe.source for probe in events(trace, Probe) if probe.probe == "lost loss"}
    for answer in answers_to(trace, "terms unread"):
        if answer.measured > 0 and answer.smallest not in told:
            yield note(
                f"`{trace.subject}` computes a number that learns, and never reads it",
                f"`{answer.enters}`",
                integer(answer.measured, "variables") + " with a graph, and no place that reads",
                "none",
                why="perhaps a term that was to be added to the loss: nothing learns from it",
                event=answer,
                source=answer.smallest,
            )
            return


_LEAST_UNUSED = 3  # calls, and passes backward: once, somebody may look at a loss alone


@invariant("loop", evidence=FUNCTIONS)
def losses_are_learned_from(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Every training loss that is computed is used in a backward pass.

    Judges: loss functions of torch that return something with a graph, 3 (limit) times or more:
        what goes into a variable where another value takes its place, in any case and before it is
        read (a note: which nothing ever reads); and places where, in nearly all passes backward,
        four losses or more of different targets came before, of which only the last one is left.
    Allows: losses that are read in any place, if only to be printed; that are kept, added up or
        given to torch.autograd.grad; names that begin with an underscore; that one of several
        losses of the same batch is chosen.
    Misses: losses by hand; terms that are returned with others, or logged and never added.
    Why: `loss = ...` where `loss += ...` was meant drops what stands there; a backward pass that
        has slipped out of the loop over batches learns from the last batch of each epoch.
    Source: Guruprasad93/FlexibleMachineLearning issue 3 (a term of the loss that is never added);
        huggingface/sentence-transformers pull 3854 (only the last mini-batch goes backward).
    """
    least = trace.limit("losses_are_learned_from", _LEAST_UNUSED)
    for probe in events(trace, Probe):
        if probe.probe == "lost loss" and probe.measured >= least:
            yield Finding(
                f"`{trace.subject}` computes a loss, and never reads it",
                f"`{probe.label}`",
                integer(probe.measured, "calls") + " whose loss nothing reads",
                "losses that are learned from",
                why="perhaps a term that was to be added to what goes backward",
                rank=Rank.BROKEN if probe.reference else Rank.NOTE,
                event=probe,
            )
        often = probe.measured >= max(least, _USUAL * probe.reference)
        if probe.probe == "last loss" and often:
            yield Finding(
                f"`{trace.subject}` goes backward from only the last of several losses",
                "",
                integer(probe.measured, "passes backward")
                + f" after {probe.step / probe.measured:.3g} losses each, of which one was left",
                "losses that are learned from",
                why="perhaps backward() stands after the loop over batches, not inside it",
                event=probe,
            )


@invariant("loop", evidence=has_probe("penalty", "no gradient was asked for with its graph"))
def penalty_norms_are_of_outputs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A gradient penalty takes one norm per output, of that output's own gradient.

    Judges: gradients that `torch.autograd.grad` returns with their graph, of whose norm the
        distance to a number goes into a loss: how many norms there are, against how many outputs
        were asked, or added up, in 3 steps or more. As many or fewer of the gradient of the mean of
        all outputs, of which each input gets its part alone, where they are held to a number above
        4 divided by the outputs.
    Allows: one norm for several outputs, as for those of patches; as many norms as outputs, as for
        distances in each of many points. It is a note where the gradients have three dimensions:
        each step of a sequence may be held to its own norm.
    Misses: norms by hand that are not a root of a sum of squares; penalties without a target.
    Why: `norm(dim=1)` of the gradient of a batch of pictures is one norm for each pixel, over its
        channels: all of them are then pulled to the size that all together are to have. The
        gradient of `outputs.mean()` is 1 / N of each output's own: a norm of one is then N.
    Source: caogang/wgan-gp issues 25 and 56; eriklindernoren/PyTorch-GAN issue 20;
        keras-team/keras-contrib pull request 75.
    """
    for probe in [p for p in events(trace, Probe) if p.probe == "penalty of a mean"][:1]:
        yield Finding(
            f"a penalty of `{trace.subject}` takes norms of the gradient of a mean",
            f"a gradient of shape {probe.label}",
            Measure(f"1/{int(probe.reference)} of each output's gradient", 1 / probe.reference),
            Measure("all of it", 1.0),
            why="differentiate the sum of the outputs, or the outputs with grad_outputs of ones",
            event=probe,
        )
    for probe in [p for p in events(trace, Probe) if p.probe == "penalty"][:1]:
        outputs = int(probe.reference)
        yield Finding(
            f"a penalty of `{trace.subject}` takes many norms of the gradient of each output",
            f"a gradient of shape {probe.label}",
            integer(int(probe.measured), "norms") + f" for {outputs} outputs",
            integer(outputs, "norms") + " or fewer",
            why="flatten the gradient of each sample before its norm is taken, or take it over all"
            " dimensions but the first",
            rank=Rank.NOTE if probe.label.count(",") == _SEQUENCES else Rank.BROKEN,
            event=probe,
        )
