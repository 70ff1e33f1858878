"""Judgements of a step in another way: in another order, with other noise, with cut graphs."""

from collections.abc import Iterator

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_answer
from trainguard.invariants.loop.models.counterfactuals import answers_to, with_entry
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_LEAST_ORDERS = 2  # answers
_RUNNING = "running sum"
_PERVASIVE = 0.9  # of the samples that moved: experts that are full by the order drop few
_LEAST_NOISES = 2  # answers
_GROSS, _SURE = 1.0, 2.0  # of a loss, as it was asked for; and so far that one step is enough
_LITTLE = 0.05  # of the first loss of a run: what is that small is learned
_LEAST_STEPS = 2  # answers: a choice of experts may fall otherwise in one
_SAME_LOSS = 0.0625  # of it, 16 epsilons of bfloat16
_OTHER_GRADIENT = 0.5  # of its norm
_OTHERS = 0.1  # of the numbers: a sign of what is nearly zero may be another one in a few
_SHORTCUTS = {"autocast": "autocast", "compile": "torch.compile"}
_REASONS = {
    "autocast": "perhaps gradients are too small for float16 (a gradient scaler helps), or a"
    " function by hand computes something else in 16 bits",
    "compile": "perhaps code that asks whether it is compiled, or a backend that is wrong",
}
_LEAST_STATES = 2  # answers: a first step may be a warm-up of its own kind


@invariant(
    "loop",
    evidence=has_answer("batch in another order", "no batch had samples that could change places"),
)
def order_of_samples_does_not_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The result for a sample does not depend on its position in the batch.

    Judges: steps that a forked child made again with the samples of the batch in another order, in
        all variables of the callers, without dropout, where a loader of torch drew the samples at
        random, or the targets are the next tokens of the inputs: what loss functions of torch are
        given for samples whose targets moved with them, and that no other sample changes; or that
        one changes a few others, of a model that is given lengths. A note where a loss by hand has
        another value.
    Allows: rounding, 1e-4 of the largest score (1e-1 in dtypes of 8 to 11 bits), a change for less
        than 90 % of the samples that moved, or in one step alone, and samples that mix: whatever
        looks at its neighbours, or at a group, minds who they are.
    Misses: weights by place that a loss function does not see; batch statistics, tables of all
        pairs, numbers of samples in lists or arrays, states kept in the model, random numbers
        other than dropout's; losses with a running sum over samples, which need an order.
    Why: a positional encoding that is written for (T, B, C) and given (B, T, C) tells a model the
        number of the sample, and nothing of positions. What is sorted by length to be packed, and
        not put back, goes to the targets of other samples.
    Source: songyangco/GETNext issue 2; datawhalechina/hello-agents issue 61.
    """
    answers = answers_to(trace, "batch in another order")
    moved = [a for a in answers if a.measured >= _PERVASIVE * a.reference > 0]
    if _LEAST_ORDERS <= len(moved) == len(answers) and moved[0].numbers:
        looked = trace.conditions.get("looked")
        if not (isinstance(looked, tuple) and _RUNNING in looked):  # such a sum needs an order
            yield _make_note(trace, moved[0])
        return
    others = answers_to(trace, "a sample edited")
    mixing = [other for other in others if other.measured >= _PERVASIVE * other.reference]
    if len(moved) < _LEAST_ORDERS or len(moved) < len(answers) or not others or mixing:
        return
    first, few = moved[0], any(other.measured for other in others)
    yield Finding(
        f"a sample's place in its batch matters in `{trace.subject}`",
        at_step(first.step) + f", {first.label}",
        portion(first.measured, first.reference, "samples") + f" change in {first.smallest}",
        "less than " + percent(_PERVASIVE) + " of them",
        smallest=with_entry(first),
        why="perhaps what was sorted by its lengths is not put back in its order: what is"
        " computed for a sample has to go to its own row (or enforce_sorted=False)"
        if few
        else "perhaps positions are counted along the batch: an encoding that is"
        " written for (T, B, C), and given (B, T, C)",
        event=first,
    )


def _make_note(trace: Trace[Event], first: WhatIf) -> Finding:
    """Return the note about a loss by hand that minds the order of its samples."""
    plain, other = first.numbers
    return note(
        f"the loss of `{trace.subject}` depends on the order of the samples in a batch",
        at_step(first.step) + f", {first.label}",
        number(other),
        number(plain) + ", as in the order that they had",
        smallest=with_entry(first),
        why="perhaps what belongs to a sample is sorted without the rest of it: put outputs, times"
        " and labels in one order. What pairs a sample with the next one on purpose does so too",
        event=first,
    )


@invariant(
    "loop", evidence=has_answer("checkpoints bypassed", "no activation was checkpointed"), live=SOON
)
def checkpoints_keep_gradients(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Activation checkpointing changes no gradient.

    Judges: a step that a forked child made again with every `torch.utils.checkpoint` bypassed, from
        the same random state.
    Allows: rounding, 1e-4 of the largest gradient (1e-1 in dtypes of 8 to 11 bits).
    Misses: checkpointing that is not that of torch.
    Why: a reentrant checkpoint whose inputs need no gradient cuts off all that lies before it, and
        only warns; dropout that is drawn anew gives gradients of another function.
    Source: PyTorch, torch.utils.checkpoint ("None of the inputs have requires_grad=True").
    """
    for answer in answers_to(trace, "checkpoints bypassed"):
        if answer.measured > 0:
            yield Finding(
                f"checkpoints change the gradients of `{trace.subject}`",
                at_step(answer.step),
                portion(answer.measured, answer.reference, "parameters")
                + " have another gradient without checkpoints",
                "the same gradients",
                smallest=answer.smallest,
                why="perhaps a reentrant checkpoint whose inputs need no gradient:"
                " use_reentrant=False; or preserve_rng_state=False with dropout",
                event=answer,
            )


@invariant(
    "loop", evidence=has_answer("losses scaled", "no gradient scaler was meant to scale"), live=SOON
)
def scale_of_losses_does_not_matter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss scale of mixed precision does not change the optimizer's steps.

    Judges: a step that a forked child made again with a quarter of the scale of every gradient
        scaler, up to the gradients that an optimizer is about to step with. A note where torch has
        disabled a scaler, since its device is not there: it is enabled on the CPU for that.
    Allows: 5 % of the norm, which small numbers may lose in 16 bits. Clipping of scaled gradients,
        of which clipping_takes_effect tells.
    Misses: optimizers that unscale in their own kernels, steps by hand, and the second optimizer
        of a pair in steps that were not asked.
    Why: gradients that are clipped, penalised, added to or stepped with before they are unscaled
        are some ten thousand times as large as they should be, and Adam hides most of it.
    Source: PyTorch, Automatic Mixed Precision examples (gradient clipping, gradient penalty).
    """
    steps = events(trace, Step)
    told = any(step.clip == "scaled" and step.clip_limit < step.scale for step in steps)
    for answer in answers_to(trace, "losses scaled"):
        if answer.measured > answer.reference and not told:
            whole, less, enabled = answer.numbers
            yield Finding(
                f"the loss scale of `{trace.subject}` changes its steps",
                at_step(answer.step) + f", {answer.label}",
                "gradients of norm " + number(less) + f" instead of {number(whole)}",
                "the same gradients, within " + percent(answer.reference),
                why="perhaps gradients are clipped, read for a penalty or stepped with while they"
                " are scaled: scaler.unscale_(optimizer) first, or divide by scaler.get_scale()",
                rank=Rank.BROKEN if enabled else Rank.NOTE,
                event=answer,
                source=answer.source,
            )
            return


@invariant("loop", evidence=has_answer("other noise", "no dropout struck in a step"))
def dropout_matters(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Dropout takes effect: another seed changes the loss or the gradients.

    Judges: steps that a forked child made again from another seed, where dropout strikes 32
        elements or more on the average. A note where it strikes nothing: a layer of dropout is not
        called, the module that has it is, and the step draws no random number.
    Allows: anything but the same loss and gradients to the last bit in two steps.
    Misses: one of several dropouts that does not matter.
    Why: `self.dropout(hidden)` whose result is thrown away regularises nothing; nor does a layer
        that `forward` forgets.
    Source: discuss.pytorch.org, dropout called without assigning its result.
    """
    answers = answers_to(trace, "other noise")
    same = [answer for answer in answers if answer.measured == 0]
    if len(same) >= _LEAST_NOISES and len(same) == len(answers):
        first = same[0]
        strikes = first.numbers == (1.0,)
        yield Finding(
            f"dropout changes nothing in `{trace.subject}`",
            f"steps {', '.join(str(answer.step) for answer in same)}",
            Measure("the same loss and gradients from another seed", len(same), "steps"),
            "another loss, or other gradients",
            why="perhaps the result of dropout is thrown away: hidden = self.dropout(hidden)"
            if strikes
            else "a layer of dropout is never called: perhaps `forward` forgets it",
            rank=Rank.BROKEN if strikes else Rank.NOTE,
            event=first,
        )


@invariant(
    "loop",
    evidence=has_answer(
        "evaluation mode", "no module of your own that looks at its mode was evaluated"
    ),
)
def modes_agree(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A model's own evaluation-mode code does not make its loss far higher than in training.

    Judges: steps that a forked child made again with the user's own modules in evaluation mode, and
        those of torch as they were, where their code looks at the mode and the model was measured
        in evaluation mode with the same loss functions. Where they draw other noise, modules that
        make numbers zero in training and leave the others as they are. A note.
    Allows: a loss that is lower, up to twice the loss in training mode, the highest of four seeds
        where noise is drawn (three times in a single step), or a difference below 5 % of the run's
        first loss; modules that keep numbers of what they have seen; models that are shown their
        targets, or return another shape.
    Misses: what is far off in outputs alone; models that were not measured yet; models given what
        they reconstruct; dropout by hand that is no module of its own.
    Why: dropout by hand that does not divide by what it keeps, or a branch that belongs to both
        modes, make another model of the one that was trained.
    Source: Srivastava et al., Dropout (JMLR 15, 2014), section 10: weights are scaled at test time.
    """
    answers = answers_to(trace, "evaluation mode")
    far = [a for a in answers if a.measured - a.reference > _GROSS * abs(a.reference)]
    if not far or len(far) < len(answers):
        return
    first, drawn = far[0], len(far[0].numbers) > 2
    higher = first.measured - first.reference
    scale = next((abs(step.loss) for step in events(trace, Step)), 0.0)
    doubtful = len(far) == 1 and higher <= _SURE * abs(first.reference)
    if doubtful or not higher > _LITTLE * scale:
        return
    who = f"perhaps {first.smallest}: what" if first.smallest else "perhaps what"
    yield note(
        f"a model of `{trace.subject}` is another one in evaluation mode",
        at_step(first.step) + f", {first.label}",
        "the loss of its own batch is " + number(first.measured),
        "at most "
        + number(first.reference)
        + (", the highest of four seeds in training mode" if drawn else ", as in training mode"),
        why=f"{who} it does in one mode alone belongs to both, or dropout by hand does not divide"
        " by the share that it keeps",
        event=first,
        source=first.source,
    )


@invariant(
    "loop",
    evidence=has_answer(
        "gradients with their graph", "no step asked torch.autograd.grad for gradients"
    ),
    live=SOON,
)
def penalties_have_a_graph(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss term made of gradients, such as a gradient penalty, is differentiable.

    Judges: steps that a forked child made again up to the backward pass, in which the gradients
        that `torch.autograd.grad` returned for an input, without create_graph, have a graph: a term
        that is added to the loss and depends on parameters by these gradients alone. Gradients that
        are added to what learns, and depend on the same parameters, before their distance from zero
        is measured, are a note, unless they are gradients of gradients that do have their graph.
    Allows: gradients for parameters; gradients that make inputs, or weights of what learns, or
        targets of another network.
    Misses: gradients that are multiplied by what learns; `x.grad` after a backward.
    Why: without create_graph a gradient penalty or the residual of an equation is a constant: it is
        part of the loss that is shown, and changes nothing.
    Source: Gulrajani et al., Improved Training of Wasserstein GANs, 2017; torch.autograd.grad
        (create_graph).
    """
    for answer in answers_to(trace, "gradients with their graph"):
        if answer.measured > 0:
            is_part, again = (*answer.numbers, 0.0, 0.0)[:2]
            yield Finding(
                f"a {'part' if is_part else 'term'} of the loss of `{trace.subject}` is made of"
                " gradients without a graph",
                at_step(answer.step),
                Measure("it moves no parameter", answer.measured, "terms"),
                "it moves those that the gradients depend on",
                rank=Rank.NOTE if is_part and not again else Rank.BROKEN,
                why="torch.autograd.grad(..., create_graph=True) lets a penalty on gradients be"
                " learned from",
                event=answer,
                source=answer.smallest or answer.source,
            )
            return


@invariant(
    "loop",
    evidence=has_answer(
        "states with their graph", "no step cut the graph of a state again and again"
    ),
)
def states_are_learned_through(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradients flow through a recurrent state from one time step to the next.

    Judges: steps that a forked child made again up to the backward pass, in which what the user's
        code detaches keeps its graph: a chain of four states or more, each made from the one before
        by a layer such as GRUCell or LSTM, in which every hand-over is detached, in 2 such steps
        and all that were asked. Where no such layer is there, it is a note.
    Allows: states that are detached between windows or chunks; states of which one keeps its graph;
        what is handed over under no_grad.
    Misses: states that are copied without `detach` and `data`; windows of three steps in time.
    Why: a state that is detached in each step in time is a constant: the layer learns from the
        current input alone, and nothing of what lies before.
    Source: Williams and Peng, An Efficient Gradient-Based Algorithm for On-Line Training of
        Recurrent Network Trajectories, 1990; PyTorch, word language model (repackage_hidden).
    """
    answers = answers_to(trace, "states with their graph")
    if len(answers) >= _LEAST_STATES and all(answer.measured for answer in answers):
        first = answers[0]
        layers = all(answer.numbers == (1.0,) for answer in answers)
        yield Finding(
            f"nothing is learned through time in `{trace.subject}`",
            at_step(first.step),
            integer(int(first.measured), "hand-overs")
            + " of a state in a row, each without its graph",
            "a state that keeps its graph",
            why="detach a state once in a window, not in each step in time"
            if layers
            else "each step is learned alone; where that is meant, all is well",
            rank=Rank.BROKEN if layers else Rank.NOTE,
            event=first,
            source=first.smallest or first.source,
        )


@invariant(
    "loop",
    evidence=either(
        has_answer("autocast off", "no step used autocast, a compiler or a fused optimizer"),
        either(has_answer("compile off", "-"), has_answer("fused off", "-")),
    ),
)
def shortcuts_change_no_step(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Autocast, `torch.compile` and fused optimizers make the same steps as plain training.

    Judges: steps that a forked child made again from the same random state with autocast off, with
        what is compiled as it is written, and by an optimizer without `fused` and `foreach`.
    Allows: gradients that are apart by 10 % of their norm under autocast, by 5 % where compiled, or
        by eight times what rounding parameters and inputs to bfloat16 does, in one of two steps;
        parameters of which one number in ten moves otherwise. Autocast alone is a note, but where
        half of the parameters get a gradient only without it, or the loss is the same (6 %) and the
        gradients are not (50 %).
    Misses: gradients that are not finite, of which others tell; compiled steps that draw random
        numbers; optimizers without a group's `fused` or `foreach`; autocast of accelerators.
    Why: gradients below 6e-8 are zero in float16, a function by hand may have a backward of its own
        for 16 bits, and a kernel that makes several steps at once forgets what the slow one does.
    Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740); PyTorch, torch.compile
        troubleshooting (accuracy).
    """
    for name, sure in (("autocast", False), ("compile", True)):
        answers = answers_to(trace, f"{name} off")
        apart = [answer for answer in answers if answer.measured > answer.reference]
        if _LEAST_STEPS <= len(apart) == len(answers):
            first = apart[0]
            losses, lost, parameters = first.numbers
            sure |= losses < _SAME_LOSS and first.measured > _OTHER_GRADIENT
            sure |= parameters <= 2 * lost
            yield Finding(
                f"{_SHORTCUTS[name]} changes the gradients of `{trace.subject}`",
                f"steps {', '.join(str(answer.step) for answer in apart)}",
                Measure(
                    "apart by " + percent(first.measured) + " of their norm", first.measured, ""
                ),
                "at most " + percent(first.reference) + ", eight times what rounding does",
                smallest=first.smallest,
                why=_REASONS[name],
                rank=Rank.BROKEN if sure else Rank.NOTE,
                event=first,
            )
    for answer in answers_to(trace, "fused off"):
        if answer.measured > _OTHERS * answer.reference:
            yield Finding(
                f"an optimizer of `{trace.subject}` steps differently with `fused` or `foreach`",
                at_step(answer.step),
                portion(answer.measured, answer.reference, "numbers") + " move otherwise",
                "less than " + percent(_OTHERS) + " of them",
                why="perhaps the branch for `fused` or `foreach` lacks a term of the other one",
                event=answer,
            )
