"""Judgements of pairs: whether inputs and their targets belong together."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import events, in_line, lines_of_origin, percent

_MIXED = 3  # steps
_KNOWN_POSITIVES = 0.1  # of what is drawn: tables that are less than a tenth full have less
_SOME_REPEATED, _HALF_REPEATED = 0.1, 0.5  # of the rows; some accept few, which hardly matter
_CARRIED = 3  # passes: not by chance, and not the chunks of one batch


@invariant(
    "loop",
    evidence=either(
        has_probe("labels", "no sample came again with its label"),
        has_probe("partners", "-"),
        has_probe("mirrored", "-"),
        has_probe("displaced", "-"),
    ),
)
def labels_follow_inputs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The same input comes with the same label.

    Judges: inputs that were seen again, the share of them whose label was another one: those of a
        loader of classes, and those of any epochs that have the same inputs and the same targets.
        Targets that lie over their images, as masks do: those that came mirrored with the same one,
        and images that came mirrored with the same target, or otherwise than it, in whatever light.
        Of data that are served at random, by how much a few pictures and the targets that lie over
        them were shifted, turned or mirrored since they were served first: both as wholes, and
        differently, in 6 or more of 24 servings, and in 3 of 10 where both were moved.
        Pictures that came mirrored, with targets of at most 16 numbers of which one goes with the
        place of what is in the picture: how far both are off the middle correlates by 0.7 or more.
        Two inputs of a model, of which each row has a partner of its own: whether rows that come
        again have others, where one of both sides comes in the order that it had and the other does
        not. A note where both are shuffled: they may be drawn apart on purpose.
    Allows: three quarters of the share that labels drawn by chance would have: some data is noisy.
        Classes that are named anew; targets that are the same in each batch, as positions are.
    Misses: inputs that are seen once, or augmented otherwise; labels that are wrong from the
        beginning.
    Why: labels that are shuffled apart from their inputs can only be learned by heart.
    Source: Borda/kaggle_image-classify pull request 12; albumentations' guide to masks.
    """
    moved = [_moved_apart(trace, p) for p in events(trace, Probe) if p.probe == "displaced"]
    mirrored = [_mirrored_apart(trace, p) for p in events(trace, Probe) if p.probe == "mirrored"]
    yield from moved[:1] or mirrored  # what is turned is moved too
    yield from (_come_apart(trace, p) for p in events(trace, Probe) if p.probe == "partners")
    # Three watchers look at labels: of a loader, of rows of epochs, and of sums over epochs.
    found = [p for p in events(trace, Probe) if p.probe == "labels" and p.measured > p.reference]
    for probe in found[:1]:
        yield Finding(
            f"the labels of `{trace.subject}` do not follow their inputs",
            ", ".join(part for part in (f"step {probe.step}", probe.label) if part),
            "another label in " + percent(probe.measured) + " of the repeated inputs",
            "at most " + percent(probe.reference),
            why="perhaps inputs and labels are shuffled apart from each other: index both by the"
            " same permutation, before what this line is given"
            + in_line(*lines_of_origin(trace, "order of rows")),
            event=probe,
        )


def _come_apart(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding of inputs whose rows come in other pairs."""
    return Finding(
        f"the paired inputs of `{trace.subject}` change their partners",
        f"{probe.label}, beside input 0",
        integer(probe.measured, "rows")
        + " come again, most of them with another partner"
        + (", and those of one input in the order that they had" if probe.step else ""),
        "the partners that they had",
        why="perhaps one of them is not indexed by the permutation that the other one is",
        rank=Rank.BROKEN if probe.step else Rank.NOTE,
        event=probe,
    )


def _moved_apart(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding of targets that were moved otherwise than the pictures below them."""
    return Finding(
        f"the targets of `{trace.subject}` are moved apart from their pictures",
        "samples that were served again: how picture and target are shifted since the first time",
        portion(probe.measured, probe.reference, "servings")
        + " in which the target was moved otherwise",
        integer(0, "servings"),
        why="draw once where a sample is cropped, shifted or turned, and do the same to the picture"
        " and to its target",
        event=probe,
    )


def _mirrored_apart(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding of inputs or targets that were mirrored without the others."""
    if probe.label:
        return Finding(
            f"pictures of `{trace.subject}` are mirrored, and the places in their targets are not",
            f"{probe.label}, which tell on which side something lies",
            portion(probe.measured, probe.reference, "pictures that came again")
            + " were mirrored, with the target that they had",
            "none",
            why="mirror the target too: x becomes the width less x, an angle or offset changes its"
            " sign, and left and right change their names",
            event=probe,
            source=probe.source,
        )
    return Finding(
        f"the targets of `{trace.subject}` are mirrored apart from their inputs",
        "inputs and targets of which one came again",
        portion(probe.measured, probe.reference, "pairs") + " were mirrored on the other side",
        "none",
        why="draw once whether a sample is flipped, and flip its input and its target by it, along"
        " -1 and -2: counted from the end they are the same in a mask without channels",
        event=probe,
    )


@invariant("loop", evidence=has_probe("carried", "no recurrent layer began with a state"))
def states_follow_their_samples(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A recurrent state is not carried over to unrelated samples of the next batch.

    Judges: training passes of models with recurrent layers, each with a batch whose samples a
        loader of torch draws at random, or the script from a table, at indices in no order that it
        has in a variable, and whose layers begin with anything but zeros: whether in
        3 or more, and in half of them, that is what the pass before has returned, or has left in an
        attribute of its modules.
    Allows: states of zeros, or that are learned; chunks of one batch in a row; loaders that draw in
        order, as for streams, and rows that each go on; batches made by other means.
    Misses: memories that are no states of recurrent layers; states that are kept elsewhere.
    Why: in a shuffled batch row 3 is another sample than row 3 of the batch before: it begins with
        what was read about a stranger, and the first steps in time are guesswork.
    Source: pytorch.org/tutorials, word-level language modelling (repackage_hidden, over contiguous
        text); Keras, RNN (documentation: stateful=True wants shuffle=False).
    """
    for probe in events(trace, Probe):
        carried = probe.probe == "carried" and probe.measured >= _CARRIED
        if carried and 2 * probe.measured > probe.reference:
            yield Finding(
                f"recurrent states of `{trace.subject}` go on with other samples",
                "the state that a recurrent layer begins with",
                portion(probe.measured, probe.reference, "passes")
                + " begin with the last state of the batch before, which has other samples",
                "none",
                why="begin each batch with no state; or, where samples are chunks of streams, serve"
                " them in order, the next chunk in the same row",
                event=probe,
            )


@invariant(
    "loop", evidence=has_probe("mixed", "no batch was mixed of samples with two labels each")
)
def mixtures_keep_their_labels(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Mixup and CutMix samples get the labels of both sources, with matching weights.

    Judges: batches that are a weighed mean of each sample and another one of the batch, or have a
        part of another one pasted in, with a cross-entropy for each of two labels: whether the
        labels are those of the two samples, and the weights those of the mixture, and not of each
        other; in 3 steps or more, most of those whose parts were found.
    Allows: boxes that are smaller at a border, by 0.05 of the weights; shares near one half, which
        say nothing; batches whose parts are in no variable.
    Misses: mixtures of soft labels, of three samples, and of shares that differ within a batch.
    Why: each of these trains without an error: the model learns labels that are not there, or those
        of what can hardly be seen.
    Source: Zhang et al., 2018, mixup (arxiv.org/abs/1710.09412); xudonmao/VMT issue 1 (two orders);
        kornia/kornia issue 3077 (the share of the wrong one).
    """
    for probe in events(trace, Probe):
        if probe.probe == "mixed" and probe.measured >= max(_MIXED, probe.reference / 2):
            other = probe.label.startswith("labels")
            yield Finding(
                f"`{trace.subject}` mixes samples, and learns them with {probe.label}",
                "a loss for each of two labels",
                portion(probe.measured, probe.reference, "steps"),
                integer(0, "steps"),
                why="draw one order, and take it for samples and labels: x[order], y[order]"
                if other
                else "share * x + (1 - share) * x[order] goes with share * loss(y)"
                " + (1 - share) * loss(y[order])",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("drawn negatives", "no scores of pairs were pushed one way"),
        has_probe("repeated candidates", "-"),
        has_probe("narrow negatives", "-"),
    ),
)
def negatives_are_no_positives(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Pairs sampled as negatives are not positive pairs.

    Judges: models that score pairs, or triples, of whole numbers, such as users and items, in calls
        that push all their scores one way: how many of the pairs that are pushed down are pushed up
        in another call of the first 512 steps. Broken from 0.1 (limit) on; a note from a third of
        that. Of a cross-entropy over all pairs of a batch, of 16 to 1024: in how many rows the
        partner stands in another column, too, which has the same score in all rows. Broken from a
        half on; a note from a tenth. And whether the items that are pushed down are all those below
        a number, which another table of the module has as rows, while others are pushed up alone.
    Allows: positives of which some come again before the others have come once, as counts of words
        that stand together; fewer than 256 negatives; what a sparse table has by chance; columns
        that a mask leaves out of such a row; tables most of whose columns are alike.
    Misses: one call with labels of both kinds; scores of all items at once; accelerators; models
        that look items up themselves.
    Why: what a user likes is pushed down as often as it is drawn, the most where the hardest of
        several is taken: the best items of each user are learned to be bad ones.
    Source: Rendle et al. 2009, BPR (arXiv 1205.2618), section 3.1: the negative is not in I+;
        tensorflow/recommenders, `remove_accidental_hits` of its retrieval task.
    """
    yield from _find_repeated(trace)
    yield from _find_narrow(trace)
    least = trace.limit("negatives_are_no_positives", _KNOWN_POSITIVES)
    for probe in events(trace, Probe):
        if probe.probe == "drawn negatives" and probe.measured >= least / 3:
            yield Finding(
                f"`{trace.subject}` draws negatives that are positives elsewhere",
                f"scores of {probe.label}",
                percent(probe.measured) + f" of {probe.reference:.0f} pairs that are pushed down"
                " are pushed up in other calls",
                "below " + percent(least),
                why="draw again where a pair is known, as `while (user, item) in seen` does",
                rank=Rank.BROKEN if probe.measured >= least else Rank.NOTE,
                event=probe,
                source=probe.source,
            )


def _find_narrow(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield models whose negatives are drawn from a range that is that of something else."""
    for probe in events(trace, Probe):
        if probe.probe == "narrow negatives":
            yield Finding(
                f"`{trace.subject}` never draws some items as negatives",
                f"scores of {probe.label}",
                integer(probe.measured, "items") + ", which is how many rows another table has",
                integer(probe.reference, "items"),
                why="perhaps they are drawn by the number of users: what is never pushed down rises"
                " above the rest",
                event=probe,
                source=probe.source,
            )


def _find_repeated(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the losses over pairs of a batch in which many partners come more than once."""
    for probe in events(trace, Probe):
        share = probe.measured / probe.reference if probe.probe == "repeated candidates" else 0.0
        if share >= _SOME_REPEATED:
            yield Finding(
                f"a contrastive loss of `{trace.subject}` pushes away what it pulls together",
                "the columns of its table of scores",
                percent(share) + f" of {probe.reference:.0f} rows have their partner in another"
                " column, too",
                "below " + percent(_SOME_REPEATED),
                why="what comes several times in a batch is its own negative, the more often the"
                " more popular it is: give -inf to the columns that have the partner of a row, as"
                " where items[:, None] == items, but for the diagonal",
                rank=Rank.BROKEN if share >= _HALF_REPEATED else Rank.NOTE,
                event=probe,
                source=probe.source,
            )
