"""Judgements of what was tried out on copies of live objects, and of a run that was run again."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import MIXING, TARGETS, has_probe
from trainguard.invariants.loop.models.counterfactuals import answers_to, with_entry
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_PERVASIVE = 0.9  # of the other samples: experts that are full, or a mixed partner, move a few
_MOSTLY = 0.5  # of them, beside an answer that is pervasive: what changes little may be rounding
_LEAST_ANSWERS = 2
_LEAST_BATCHES, _MOST_SHOWN = 3, 0.5  # of hidden tokens; of the targets
_OVER_THE_BATCH = "perhaps a recurrent layer takes the batch for time: see batch_first"


def _of(trace: Trace[Event], kind: str) -> Iterator[Probe]:
    """Yield the probes of one kind."""
    return (probe for probe in events(trace, Probe) if probe.probe == kind)


def _at(probe: Probe) -> str:
    """Write when and where something was tried out."""
    return ", ".join(part for part in (f"step {probe.step}", probe.label) if part)


def _fades(answer: WhatIf) -> bool:
    """Say whether a change goes on from each sample to the next, and fades."""
    return answer.numbers[1:2] == (1.0,)


def _find_shown_numbers(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding of losses that count what is shown, where as much could be hidden."""
    for probe in _of(trace, "shown numbers"):
        redrawn = probe.step or 0  # what is hidden for good may be what nobody knows
        if probe.measured == probe.reference >= _LEAST_BATCHES <= redrawn:
            yield Finding(
                f"the loss of `{trace.subject}` counts visible values, and not the masked ones",
                "what a loss is multiplied by, or picks",
                portion(probe.measured, probe.reference, "losses")
                + " count the numbers that are shown as they are, and none that is blank",
                "those that are blank",
                why="the mask is the wrong way round: hide and count the same places",
                event=probe,
            )


@invariant("loop", evidence=TARGETS)
def target_is_not_in_the_input(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The target does not leak into the input of the model.

    Judges: columns of the input, or places in windows whose neighbours foretell them, that equal
        the target in every row of the batches looked at; the last places of windows, half of them
        at most, that are a target of several, or what such a target begins with; the outputs at
        earlier positions when a later one is edited, of tokens, and of series of 8 values or more
        under a distance of torch; where each token is its own target, the output for an edited one,
        of a model whose outputs depend on earlier tokens and on no later ones. Numbers of a
        variable of which some are blank where a layer is given them: whether all that is learned
        counts exactly the others, in 3 losses or more, where rows come again with other numbers
        blank. A note: half of the targets or more are shown, where the others are hidden behind a
        token that is no target.
    Allows: a share below 1 (limit) of equal rows; a change of an output within rounding; losses
        without a reduction, which are perhaps masked later.
    Misses: targets that are scaled, shifted or hidden in several columns; series that a model with
        a batch norm reads.
    Why: the loss falls to nothing and the model is of no use where the target is not known yet.
    Source: huggingface/transformers issues 31673, 35066 and 48745; neurodata/SPORF issue 355.
    """
    least = trace.limit("target_is_not_in_the_input", 1.0)
    for probe in _of(trace, "target"):
        if probe.measured >= least:
            yield Finding(
                f"the target of `{trace.subject}` stands in its input",
                _at(probe),
                "equal in " + percent(probe.measured) + " of the rows",
                "less than " + percent(least),
                why="perhaps the column of the target was not dropped from the features, or the"
                " target begins before the end of its window",
                event=probe,
            )
    for probe in _of(trace, "shown"):
        if probe.step >= _LEAST_BATCHES and probe.measured >= _MOST_SHOWN * probe.reference:
            yield note(
                f"most targets of `{trace.subject}` are shown to it, and the others are hidden",
                probe.label,
                portion(probe.measured, probe.reference, "targets") + " stand in their places",
                "less than " + percent(_MOST_SHOWN),
                why="perhaps labels of what is not hidden are to be -100, and not to count",
                event=probe,
            )
    yield from _find_shown_numbers(trace)
    for probe in _of(trace, "future"):
        if probe.measured > probe.reference:
            yield Finding(
                f"an earlier output of `{trace.subject}` depends on a later input",
                _at(probe),
                "changed by " + number(probe.measured),
                "at most " + number(probe.reference),
                why="perhaps padding is on the wrong side, a layer reads backwards, or a norm takes"
                " its statistics over all steps in time, as GroupNorm does it; LayerNorm over the"
                " features of each step does not"
                if probe.label.startswith("next value")
                else "perhaps a causal mask is missing, or padding on the wrong side",
                event=probe,
            )
    for probe in _of(trace, "present"):
        if probe.measured > probe.reference:
            yield Finding(
                f"`{trace.subject}` predicts each token from itself",
                _at(probe),
                "changed by " + number(probe.measured) + " with the token that is the target",
                "at most " + number(probe.reference),
                why="perhaps the targets are the inputs, not shifted by one",
                event=probe,
            )


@invariant(
    "loop",
    evidence=has_probe("shifted", "no labels of a language model may have been shifted twice"),
)
def targets_are_shifted_once(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A language model predicts the next token, not the one after it.

    Judges: models that are called with tokens and with labels that are the next tokens already:
        whether the targets of the loss are what follows those labels. Models that are called with
        tokens, and whose output for each depends on no later one, in the first 9 steps: whether
        all targets are two places ahead, where the scores are cut by one at their end, as a shift
        does it, or the targets begin anew at their end; of losses by hand too, that pick them.
    Allows: several heads, one of which predicts the next token, or that learn beside what is
        frozen; first places that are not counted; windows of tokens and of those two places ahead.
    Misses: models whose embedding or head is called by itself; runs with several optimizers.
    Why: many models and loops shift labels by themselves; where the data are shifted too, each
        token is predicted from all but the one before it, and what is generated leaves every other
        one out.
    Source: huggingface/transformers, GPT2LMHeadModel ("the labels are shifted inside the model");
        InternLM/InternLM issue 318.
    """
    for probe in _of(trace, "shifted"):
        yield Finding(
            f"`{trace.subject}` predicts the token after the next one",
            _at(probe),
            "targets " + integer(probe.measured, "places") + " after their token",
            integer(probe.reference, "place"),
            why="the labels are shifted where they are made, and again by the model or the loop",
            event=probe,
        )


@invariant("loop", evidence=MIXING)
def samples_do_not_mix(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The output for a sample does not depend on the other samples of its batch.

    Judges: in evaluation mode, the outputs of the other samples when every second one is exchanged,
        where a loader or the script drew single samples at random, along whichever of two axes; in
        a step that a forked child made again, what loss functions of torch are given for them. A
        note along the second axis, where a layer takes time along the first: these may be a scene;
        and where no loader drew the rows, nor indices in no order from a variable of the script,
        but the rows themselves come in no order, each with one target, and all change.
    Allows: changes within rounding; of a step, what changes less than 90 % of the other samples,
        or less than half of them another time, unless it goes on from each sample to the next, and
        fades.
    Misses: mixing inside of a loss; steps with batch statistics, tables of all pairs, several
        optimizers, or rows that neither a loader of torch nor the script draws at random and that
        are no tables.
    Why: a softmax or a mean over the batch dimension makes predictions depend on the company.
    Source: DeepReinforcementLearningInAction issue 32; perone/euclidesdb issue 2 (softmax, dim=0).
    """
    tried = [*_of(trace, "mix"), *_of(trace, "mix along time")]
    found = [probe for probe in tried if probe.measured > probe.reference]
    for probe in found:
        yield Finding(
            f"samples of a batch mix in a model of `{trace.subject}`",
            _at(probe),
            "changed by " + number(probe.measured),
            "at most " + number(probe.reference),
            why="perhaps a softmax, a maximum, a mean or a view over the batch"
            + ("" if probe.probe == "mix" else ", the second axis here"),
            rank=Rank.BROKEN if probe.probe == "mix" else Rank.NOTE,
            event=probe,
        )
    answers = [] if found else answers_to(trace, "a sample edited")
    whole = [a for a in answers if a.measured >= _PERVASIVE * a.reference > 0 or _fades(a)]
    mixed = [a for a in answers if a in whole or a.measured >= _MOSTLY * a.reference]
    if whole and len(mixed) >= _LEAST_ANSWERS and len(mixed) == len(answers):
        first = whole[0]
        inside, fading = first.numbers[:1] == (1.0,), _fades(first)
        yield Finding(
            f"samples of a batch mix in {'a model' if inside else 'the steps'} of"
            f" `{trace.subject}`",
            at_step(first.step) + f", {first.label} edited",
            portion(first.measured, first.reference, "other samples")
            + (" changed, ever less from one to the next" if fading else " changed"),
            "none of them" if fading else "less than " + percent(_PERVASIVE) + " of them",
            smallest=with_entry(first, first.smallest),
            why=_OVER_THE_BATCH
            if fading
            else "perhaps a softmax, a maximum, a mean or a view over the batch"
            + ("" if inside else ", between the model and the loss"),
            rank=Rank.NOTE if first.numbers[2:] == (0.0,) and not fading else Rank.BROKEN,
            event=first,
        )


_DROPPED = (
    "perhaps F.dropout without training=self.training, or noise that is drawn in the forward pass"
)
_DECIDED = (
    "this line draws a number that decides what the pass does, as teacher forcing or a layer that"
    " is left out at random does: pass a ratio of 0 in evaluation, or draw it in training mode only"
)
_AGAIN = {
    "repeat": (Rank.BROKEN, _DROPPED),
    "repeat as told": (Rank.NOTE, _DROPPED),
    "repeat by chance": (Rank.BROKEN, _DECIDED),
}


@invariant("loop", evidence=has_probe("repeat", "no evaluation was fit to be made again"))
def evaluation_is_deterministic(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The same input gives the same output in evaluation mode.

    Judges: two passes over the input of an evaluation, on a copy of the model. A note where what
        drops is told training=True, and a loss is measured or a number of an evaluation is said.
        What differs by dropout, or by single numbers that are drawn for a whole batch, of which a
        loss is measured.
    Allows: differences within rounding, as the probe measured it; noise; three passes over one
        input, or batches in which a row comes again: an average over them is meant to differ.
    Misses: randomness that not every input brings about.
    Why: dropout called as a function, with training=True, stays on whatever the mode is. A decoder
        that is still shown the true tokens now and then, as in training, is better than it will be.
    Source: bentrevett/pytorch-seq2seq (teacher forcing is turned off in evaluate);
        Coderx7/SimpleNet issue 2; mertyg/vision-language-models-are-bows issue 17.
    """
    for probe in events(trace, Probe):
        if probe.probe in _AGAIN and probe.measured > probe.reference:
            rank, why = _AGAIN[probe.probe]
            yield Finding(
                f"an evaluation of `{trace.subject}` gives another output each time",
                _at(probe),
                "differs by " + number(probe.measured),
                "at most " + number(probe.reference),
                why=why,
                rank=rank,
                event=probe,
            )


@invariant("loop", evidence=has_probe("repeated", "no input was passed again and again"))
def repeated_passes_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Dropout is active in repeated passes that estimate uncertainty.

    Judges: an input that comes to a model in evaluation mode 6 times or more, with no step between,
        while a list or table of the user's grows by one entry with each pass: whether all entries
        are the same to the last bit, though the model has dropout. What is found is a note.
    Allows: dropout that is awake in a model in evaluation mode, noise, and members that differ;
        passes whose results are not kept, as those that are timed.
    Misses: results that are only added up, or written along another axis than the first.
    Why: uncertainty by Monte Carlo dropout is zero for every sample where dropout is asleep.
    Source: Gal and Ghahramani 2016, Dropout as a Bayesian Approximation, section 4.
    """
    for probe in _of(trace, "repeated"):
        yield note(
            f"`{trace.subject}` keeps the results of one pass that it makes again and again",
            _at(probe),
            "the same to the last bit in " + integer(probe.measured, "passes"),
            "different ones",
            why="model.eval() puts dropout to sleep: put its parts back with train() afterwards,"
            " where what differs is to tell how sure the model is",
            event=probe,
        )


@invariant("loop", probe="rerun")
def run_is_reproducible(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Two runs from the same seed have the same losses.

    Judges: the losses of the first 8 steps of two runs that begin with the same random states, in
        one process; in the profile thorough in a new process too, where the loop is a variable of
        a module. Where the function takes `num_workers`, 0 and 2 of them: a difference is a note.
    Allows: nothing on the CPU, or with torch.use_deterministic_algorithms: the losses agree to the
        last bit. Elsewhere kernels may add in any order, and the first difference may be rounding:
        1e-5 of a loss, and 1e-2 where something has 16 bits.
    Misses: what differs later, or on another device or with other threads.
    Why: without it no difference between two runs can be put down to a change of the code.
    Source: PyTorch's notes on reproducibility; open-mmlab/mmdetection issue 2034.
    """
    for probe in _of(trace, "processes"):
        yield _differs(
            probe,
            f"two runs of `{trace.subject}` from the same seed differ in another process",
            "perhaps the order of a set of words, or the id or hash of an object",
        )
    for probe in _of(trace, "workers"):
        yield _differs(
            probe,
            f"the losses of `{trace.subject}` depend on the number of workers",
            "perhaps random numbers are drawn in the data set: draw them from a generator that is"
            " seeded by epoch and index, so that a run can be made again on another machine",
            Rank.NOTE,
        )
    for probe in _of(trace, "rerun"):
        if probe.measured < probe.reference:
            yield _differs(
                probe,
                f"two runs of `{trace.subject}` from the same seed differ",
                "perhaps a generator of its own that is not seeded, the order of a set, or"
                " state that the first run left behind",
            )


def _differs(probe: Probe, summary: str, why: str, rank: Rank = Rank.BROKEN) -> Finding:
    """Return a finding of a run that parted from another that it should be."""
    return Finding(
        summary,
        ", ".join(part for part in (f"step {probe.measured:.0f}", probe.label) if part),
        "the same losses in " + integer(probe.measured, "steps"),
        "in " + integer(probe.reference, "steps"),
        why=why,
        rank=rank,
        event=probe,
    )


@invariant("loop", evidence=has_probe("idle", "no model with several inputs was fit to be tried"))
def each_input_has_influence(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each input of a model affects its output.

    Judges: inputs of the outermost model with a row for each sample, no two alike, after 40 steps:
        one is edited on a copy that is called as the model was, by three seeds. What the copy keeps
        counts as an output. What is found is a note.
    Allows: inputs that the code of the forward never reads; any change at all, of a single bit.
    Misses: parts of an input; influence that is merely tiny; runs with several optimizers.
    Why: a time that is divided by `//`, or fractions that are cast to whole numbers before they are
        multiplied, are zero for every sample, and the model learns as if it had not been told.
    Source: pytorch/pytorch issue 43874 (what `//` makes of tensors).
    """
    for probe in _of(trace, "idle"):
        yield note(
            f"an input that a model of `{trace.subject}` reads changes nothing",
            _at(probe),
            "the same outputs, to the last bit, with the values of other samples",
            "another output",
            why="perhaps it is divided by `//`, cast to whole numbers while it is below one,"
            " multiplied by zero, or switched off",
            event=probe,
        )
