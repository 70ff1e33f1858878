"""Judgements of the order in which samples come, and of the numbers that are drawn for them."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import events, in_line, line_of_origin, percent

_FEW = 2  # passes that repeat an order: two may be one run that was made again
_OFTEN = 20  # times that each sample reached is drawn in one pass, or that the data are larger
_DRAWN = 64  # samples of a pass, at least
_STEPS = 4  # that repeat the numbers of another
_OPENINGS = 2  # epochs that begin with those of another: three times the same is no accident


@invariant(
    "loop",
    evidence=either(
        has_probe("order", "no two shuffled epochs of a loader were seen"),
        has_probe("seeded stream", "-"),
    ),
)
def epochs_are_reshuffled(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A shuffling loader draws a different order in each epoch.

    Judges: the passes through loaders with a sampler of torch that draws an order, or one with a
        set_epoch, from which one optimizer learned: how many began as an earlier one did. A note
        for an IterableDataset without workers, each pass through which begins alike, 3 times or
        more, and makes a generator of numpy from one seed.
    Allows: half of the passes, and one. Loaders that do not shuffle, as an ascending order or a
        switch of the sampler tells; samplers of the user's own without a set_epoch; a training that
        begins again with another optimizer; a single batch of all samples.
    Misses: orders that are drawn outside of loaders; runs of two epochs; streams with generators of
        torch.
    Why: DistributedSampler needs set_epoch(), and a generator that is made or seeded anew draws the
        same order: the model sees the same batches over and over.
    Source: kan-bayashi/ParallelWaveGAN issue 177; pytorch/pytorch issue 31771.
    """
    for probe in events(trace, Probe):
        if probe.probe == "seeded stream":
            stream, seed = probe.label.split("\n")
            yield note(
                f"each pass of `{trace.subject}` through its data draws the same numbers",
                f"the stream {stream}",
                integer(probe.measured, "passes") + f" begin alike, each by seed {seed}",
                "other numbers in each, unless the data are to be the same on purpose",
                why="its __iter__ makes a generator anew: keep one, or add the epoch to its seed",
                event=probe,
                source=probe.source,
            )
        if probe.probe != "order" or probe.measured < _FEW:
            continue
        if 2 * probe.measured >= probe.reference - 1:
            sampler, _, told = probe.label.partition("\n")
            yield Finding(
                f"the epochs of `{trace.subject}` have the same order although they are shuffled",
                f"a loader with a {sampler}",
                portion(probe.measured, probe.reference, "passes") + " repeat an earlier order",
                "another order in each",
                why="sampler.set_epoch(epoch) is to be called before each epoch"
                if told
                else "perhaps a seed is set, or a generator is made, anew in each epoch",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("reach", "no epoch of a loader was seen"),
        has_probe("undrawn", "-"),
        has_probe("left in a buffer", "-"),
    ),
)
def sampler_reaches_the_data(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A sampler reaches the whole data set, and does not repeat a few samples.

    Judges: passes that were learned from, of 64 samples or more: how many different ones. And
        lists of numbers of samples that a sampler keeps, three or more in one attribute: after 3
        passes, and later ones, whether some of them were never drawn from, all of which have fewer
        numbers than a batch. And streams that samples are drawn from by way of a list, in this
        process: whether a 20th or more, 16 at least, are left in it where the stream ends.
    Allows: anything above a 20th (limit: one in so many) of what was drawn, or of the data set;
        lists as long as a batch that are left out, which are so on purpose.
    Misses: samples that are never drawn while many others are, of no such lists; streams whose list
        is as short as two batches, or which workers go through.
    Why: a WeightedRandomSampler takes one weight for each sample; given one for each class, it only
        ever draws the first few samples. Where buckets of one length drop what does not fill a
        batch, small buckets are dropped as a whole, in each epoch: the longest samples, mostly.
        What is left in a buffer is the newest part of a stream.
    Source: deep-voice/soundbay pull request 49; sorryhyun/anima_lora issue 87 (buckets with fewer
        than a batch); Nerogar/OneTrainer issue 573.
    """
    yield from _undrawn(trace)
    yield from _left(trace)
    often = trace.limit("sampler_reaches_the_data", _OFTEN)
    for probe in events(trace, Probe):
        if probe.probe != "reach" or probe.reference < _DRAWN:
            continue
        if probe.measured * often <= min(probe.reference, probe.step):
            yield Finding(
                f"the loader of `{trace.subject}` draws a few samples over and over",
                f"a pass of {probe.reference:.0f} samples, drawn by a {probe.label}",
                integer(probe.measured) + " different samples",
                "more than " + portion(min(probe.reference, probe.step) / often, probe.step),
                why="a weighted sampler takes one weight for each sample, not for each class",
                event=probe,
            )


def _left(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the finding about samples that a stream ends without serving."""
    for probe in events(trace, Probe):
        if probe.probe == "left in a buffer":
            yield Finding(
                f"a stream of `{trace.subject}` ends with samples that it never serves",
                "a pass of its loader, and the list that samples are drawn from",
                integer(probe.measured, "samples") + f" left there, {probe.reference:.0f} served",
                integer(0, "samples"),
                why="serve what is left in the buffer where the source ends: `yield from buffer`",
                event=probe,
            )


def _undrawn(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the lists of a sampler that are never drawn from."""
    for probe in events(trace, Probe):
        if probe.probe == "undrawn":
            sampler, lists, batch = probe.label.split("\n")
            yield Finding(
                f"a sampler of `{trace.subject}` never draws from its small lists",
                f"{sampler}, {lists} of its lists, in {probe.step} passes",
                portion(probe.measured, probe.reference, "samples") + " were never drawn",
                integer(0, "samples"),
                why=f"lists with fewer than {batch} samples make no whole batch, and are dropped in"
                " each pass: draw the rest of a list, too, as a smaller batch",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("sorted", "no two epochs of the same labels were seen"))
def labels_are_not_sorted(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Training samples are not sorted by class.

    Judges: the labels of each line that calls a loss function of classes, over whole epochs of 4
        steps and 32 rows or more: none may fall within an epoch. Of what a loader serves, by their
        places in its passes, most of which were seen, and 8 again with the same labels in another
        pass: whether they rise in stretches that are all alike.
    Allows: labels that fall once; a single epoch; classes that come in turns of a few batches;
        passes in which fewer than 4 steps are made, as in an evaluation with a graph.
    Misses: classes that come one after the other in no order; soft labels.
    Why: files are often sorted by class. Without shuffling, each batch has one class, and the model
        forgets the others.
    Source: Stack Overflow question 39525358, as in DeepLocalize (ICSE 2021).
    """
    for probe in events(trace, Probe):
        if probe.probe == "sorted" and probe.measured > 1:
            yield Finding(
                f"the labels of `{trace.subject}` are sorted, and not shuffled",
                "labels of each batch, in order",
                f"{probe.label}, which only rise, in each of " + integer(probe.measured, "epochs"),
                "an order that mixes the classes",
                why="perhaps shuffle=True is missing"
                + in_line(line_of_origin(trace, "loader"))
                + ", and the data are stored class by class",
                event=probe,
            )


@invariant("loop", evidence=has_probe("random", "no seed was set in the course of a training"))
def random_numbers_do_not_recur(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No training step reuses the random numbers of an earlier step.

    Judges: the states of the global generators of torch, numpy and Python at the steps that come
        after a seed was set in the course of a training: those that drew what an earlier step of
        the same optimizer had drawn. Epochs that begin with the draws of another, where
        the seed was set for an evaluation. The first 4 steps after each seed, of however long a
        run: whether they draw what those after an earlier seed drew, twice or more.
    Allows: half of the steps that draw, and 3. What is drawn for an evaluation, and for the order
        of an epoch; states that are put back, as by fork_rng; a training that begins again with
        another optimizer; a line that seeds by several numbers, as where data are drawn by index.
    Misses: generators of the user's own; states that are restored; steps by hand; of the 97th step
        and later ones, those that are not among the first after a seed.
    Why: a seed that is set for an evaluation, or in the loop, rewinds noise, dropout and
        augmentation too: what should differ in each step is the same over and over.
    Source: huggingface/diffusers issue 7991 and pull request 8223.
    """
    kinds = {"random": (_STEPS, "steps"), "random epochs": (_OPENINGS, "epochs")}
    kinds["random rewinds"] = (_OPENINGS, "steps")
    for probe in [p for p in events(trace, Probe) if p.probe in kinds and p.reference > 0]:
        least, what = kinds[probe.probe]
        if probe.measured >= least and 2 * probe.measured >= probe.reference:
            yield Finding(
                f"{what} of `{trace.subject}` draw the random numbers of earlier {what}",
                f"the global generator of {probe.label}",
                percent(probe.measured / probe.reference)
                + f" of {probe.reference:.0f} "
                + ("seeds set" if probe.probe == "random rewinds" else what),
                "none",
                why="a seed is set again and again: give evaluations a generator of their own, or"
                " set the seed once",
                event=probe,
            )
            return  # each tells the same, of a part of the run


@invariant("loop", evidence=has_probe("centred", "no windows before their targets were seen"))
def windows_end_before_their_target(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A time series window contains no information from after its end.

    Judges: windows (N, T, F) of 16 moments or more whose target is a column's value 1 to 12 moments
        after them, as windows that begin later show: whether another column is the same sum of that
        one at each moment, of moments after it too, and its last value depends on the target by
        more than what is in the window.
    Allows: sums of the past; means that are taken inside of each window; what has a period.
    Misses: targets further away; sums of more than 12 moments to a side, maxima and medians;
        data with fewer than 8 pairs of such windows among the first 1024.
    Why: a mean that is centred, as np.convolve(..., mode="same") and a centred rolling are, has the
        target in it. Errors are small as long as the future is known.
    Source: documentation of numpy.convolve and pandas.DataFrame.rolling (center).
    """
    for probe in events(trace, Probe):
        if probe.probe == "centred":
            yield Finding(
                f"the windows of `{trace.subject}` hold what comes after them",
                probe.label,
                integer(probe.measured, "moments")
                + f" after each one are in it, the target among them, and {probe.reference:.0f}"
                " before",
                "none after",
                why="perhaps a mean or difference is centred: take it over what came before",
                event=probe,
            )
            return
