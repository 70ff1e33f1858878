"""The judgement of samples that are evaluated, and learned from too."""

from collections.abc import Iterator
from statistics import mode

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import number, portion
from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.events.loop import Logged
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import HELD_OUT
from trainguard.invariants.loop.wording import events, in_line, line_of_origin

_HELD_OUT = {"val", "valid", "validation", "test", "testing", "dev", "holdout"}
_PAIRS = 16  # of an evaluation, at least
_SHARED = 0.1  # of an evaluation: real data have a few percent of samples twice
_SHARED_BY = {  # what is counted, what is said of it, and what may be the cause
    "held out": (
        "samples",
        " were trained on before",
        "perhaps the split overlaps, or the loader is that of the training",
    ),
    "overlap": (
        "samples",
        " were trained on before",
        "perhaps samples were copied, to balance the classes, before the split: split first",
    ),
    "shared indices": (
        "samples",
        " are in the training as well, as the same entries of a data set",
        "perhaps the set was split twice, or anew: split once, with a generator that has a seed",
    ),
    "shared targets": (
        "targets",
        " are those of the training, though hardly two samples have the same",
        "perhaps the samples are the same, and augmented: look at what the split is made of",
    ),
    "windows": (
        "windows",
        " end inside of windows that were trained on",
        "perhaps windows that overlap were split at random: split the series, then cut windows",
    ),
    "folds": (
        "samples that folds hold out",
        " were trained on in other folds, with the same weights",
        "the model of one fold is trained on in the next: make a new one for each",
    ),
    "rows": (
        "rows",
        " are in the loss of the training",
        "perhaps the mask of the training is left out of its loss",
    ),
}
_FOLDS = 2  # that know what they hold out: the second and the third of three
_SAID = 3  # accuracies that are of the same rows
_COVERED = 0.9  # of what was trained on: so much may be evaluated on purpose


@invariant("loop", evidence=HELD_OUT)
def evaluation_is_held_out(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Validation and test samples are not used in training.

    Judges: runs that have folds, or log something by the name of a validation or a test. Pairs of
        an input and its target in evaluations with a loss, or of a loader of pairs: whether all had
        been trained on before; a note where they are just those that were trained on. Inputs, in
        evaluations of the same set again and again, or of one at the end: whether a tenth (limit)
        or more had been trained on, among others that had not in nearly each of the passes. Windows
        of a series: whether most of those in each pass, or in three passes of four, end inside of
        what was trained on. Folds: whether a model goes on, with its weights, to learn from what
        was held out, while it holds out what it has learned from; in two folds or more. Entries of
        a data set that loaders serve, whatever an augmentation makes of them: whether 16 or more of
        those that are evaluated are learned from, where others of either are not, or all are a part
        of those that are learned from, and nothing else is evaluated. A note of targets that name
        their sample, as transcripts: whether most in each evaluation are those of a part of the
        training. Accuracies that are those of a part of the rows of a table which the model is
        given as a whole: whether a tenth of them or more are in the loss of the training, with
        their labels. A note where a series, of whose one end rows are learned from and of whose
        other end they are evaluated, has a mean of zero and a deviation of one, or goes from 0 to
        1, as a whole, and the part that is learned from is 0.1 from that.
    Allows: one sample, in any evaluation, that was not trained on before, where sets are not mixed
        within passes; texts that come twice in a batch, 2 in 1,000 of them; inputs of fewer than 16
        different numbers (8, with a loss) that are no 40 bits together, or no 80 and come twice in
        an epoch; half the training or more; a share that grows as samples are added to the
        training; windows that begin in what was trained on, and go on after its end; entries of a
        table that are all those of the training, in another role; other entries in other epochs.
    Misses: evaluations before the end of the first epoch, and those of epochs of which less than
        half is watched; inputs that are augmented, where no loader serves them; padding that is no
        zero at the end of a text; windows that are scaled each by itself; what is not on the CPU.
    Why: an overlap of the splits makes memory look like skill. Samples are perhaps drawn twice, to
        balance the classes, or windows are cut first, and split after that.
    Source: UMLAUT (CHI 2021), whose study plants it; scikit-learn's guide to data leakage;
        imbalanced-learn's common pitfalls, of sampling before the split; Hammerla and Ploetz,
        "Let's (not) stick together" (UbiComp 2015), of windows that overlap; question 75264251 of
        Stack Overflow, of folds; Lightning-AI/pytorch-lightning issues 7728 and 18638, of a split
        that is drawn for each loader.
    """
    for probe in events(trace, Probe):  # folds are known by themselves, whatever is said of them
        if probe.probe == "folds" and probe.step >= _FOLDS:
            yield _not_held_out(trace, f"{probe.step} folds", probe)
            return
        if probe.probe == "shared scale":
            yield _scaled_as_a_whole(trace, probe)
    said = [logged.name for logged in events(trace, Logged) if _is_held_out(logged.name)]
    if not said:
        return
    name = mode(sorted(said))  # what is said once may be the sizes of the sets
    every = [probe for probe in events(trace, Probe) if probe.probe == "held out"]
    held = every if sum(probe.reference for probe in every) >= _PAIRS else []
    # One function may evaluate on both: a single pair that is new tells that some are held out.
    known = bool(held) and all(p.measured >= p.reference for p in held)
    if known:
        yield _not_held_out(trace, name, max(held, key=lambda p: p.reference))
    yield from list(_in_part(trace, name)) or ([] if known else _by_targets(trace, name))


def _in_part(trace: Trace[Event], name: str) -> Iterator[Finding]:
    """Yield a finding where a part of what is evaluated is learned from."""
    least = trace.limit("evaluation_is_held_out", _SHARED)
    for probe in events(trace, Probe):
        part = probe.probe == "overlap" and least * probe.reference <= probe.measured
        if part and _PAIRS <= probe.measured < (1 - least) * probe.reference:
            yield _not_held_out(trace, name, probe)
            return
        rows = probe.probe == "rows" and probe.step >= _SAID and _is_held_out(probe.label)
        if rows and probe.measured >= least * probe.reference:
            yield _not_held_out(trace, probe.label, probe)
            return
        if probe.probe in ("windows", "shared indices") and probe.measured >= _PAIRS:
            yield _not_held_out(trace, name, probe)
            return


def _by_targets(trace: Trace[Event], name: str) -> Iterator[Finding]:
    """Yield a note where targets that name their sample are those of what is learned from."""
    for probe in events(trace, Probe):
        if probe.probe == "shared targets" and probe.measured >= _PAIRS:
            yield _not_held_out(trace, name, probe)


def _not_held_out(trace: Trace[Event], name: str, probe: Probe) -> Finding:
    """Return the finding about samples of an evaluation that were trained on."""
    samples, what, why = _SHARED_BY[probe.probe]
    is_all = probe.probe == "held out" and probe.measured >= _COVERED * probe.step
    may_be_meant = is_all or probe.probe == "shared targets"
    return Finding(
        f"the evaluation of `{trace.subject}` is made on samples that were trained on",
        f"the evaluations behind `{name}`",
        portion(probe.measured, probe.reference, samples) + what,
        "none",
        why=why + in_line(line_of_origin(trace, "evaluated samples")),
        rank=Rank.NOTE if may_be_meant else Rank.BROKEN,
        event=probe,
    )


def _scaled_as_a_whole(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the note about a series that was scaled before its end was held out."""
    _, name, by, moments = probe.label.rsplit(" ", 3)
    low, high = number(probe.measured, "", ".3g"), f"{probe.reference:.3g}"
    said = f" is the mean of what is learned from, {high} its deviation"
    if by == "range":
        said = f" is the least number that is learned from, {high} the largest"
    return Finding(
        f"the scale of `{name}` in `{trace.subject}` is that of its evaluations too",
        f"`{name}`, of which one end is learned from, and the other evaluated",
        low + said + f"; 0 and 1 are those of all {moments} moments",
        number(0.0, "", ".3g") + " and 1, of what is learned from",
        why="split first, and scale all of it by the numbers of the training part: these know"
        " what comes after it",
        rank=Rank.NOTE,
        event=probe,
    )


def _is_held_out(name: str) -> bool:
    """Say whether a name is that of something measured on samples kept apart."""
    words = words_of(name)
    return not _HELD_OUT.isdisjoint(words) or {"held", "out"} <= set(words)
