"""Judgements of where batches come from: they differ, and they come in time."""

from collections.abc import Iterator
from math import isnan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import SERVED, either, has_probe, steps_from
from trainguard.invariants.loop.wording import count, courses, events, main_course, middle, percent
from trainguard.invariants.wording import number

_LEAST = 3  # steps: the first ones may be odd
_FEW_OF_ALL = 0.2  # of the targets: padding that hardly tells in a loss, beside what is learned


@invariant("loop", evidence=SERVED)
def batches_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The steps of a run see different batches.

    Judges: how many different batches the steps got, where the loader has several, in runs of 5
        steps or more.
    Allows: a single batch that was never in a loader with others, to overfit it on purpose.
    Misses: a few batches that come again and again.
    Why: next(iter(loader)) inside the loop begins anew each time, and without shuffling it is
        always the first batch: the loss falls, and nothing is learned.
    Source: leohsuofnthu/Pytorch-IterativeFCN issue 7; ZhaoJ9014/face.evoLVe pull request 39.
    """
    made = sum(count(course.steps) for course in courses(trace))
    for probe in events(trace, Probe):
        if probe.probe == "batches" and probe.measured == 1 < probe.reference and made >= 5:
            yield Finding(
                f"every step of `{trace.subject}` sees the same batch",
                probe.label,
                Measure(f"1 batch in {made} steps", 1, "batches"),
                integer(probe.reference, "batches") + ", as its loader has",
                why="perhaps next(iter(loader)) is called in each step",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("padding", "no loss over the tokens of an embedding was seen"),
        has_probe("packed", "-"),
        has_probe("ended", "-"),
        has_probe("filled", "-"),
        has_probe("padding inside", "-"),
    ),
)
def padding_is_no_token(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The padding token is not a real token of the data, and padding is not learned.

    Judges: cross_entropy and nll_loss over the tokens of an embedding, on the CPU, where the
        padding_idx or the ignore_index comes between other tokens, mostly by itself, and where it
        is a target that the loss counts, or leaves out though each target is the token after: in
        most of the steps that were looked at, 3 at least. Sequences that were packed by their
        lengths: whether such a loss counts all places beyond the ends, where the scores are the
        same, or is made of the last place of each row, wherever it ends. Rows that end in the
        padding_idx of their embedding: whether such a loss over each of their places has one class
        as the target of all padding, which others have too; of a loss about the tokens of that
        embedding, where one token comes nowhere but before the padding of each row, and tells its
        end; or where a target does so, and a fifth of all targets are padding, fewer are a note;
        the same of the places beyond lengths that a loader serves with a batch. A note where
        rows of features end in zeros. Any embedding with a padding_idx that is read once in a step:
        whether that number comes between others, mostly by itself, in training and in each
        evaluation, about as often as other tokens, and without runs at the ends of rows; a note
        where it is the category of whole samples. Batches of rows, as wide as their longest, with a
        mask of what is real or an end by name, in which each place learns the token after: whether
        all rows, the longest too, end with the token of padding, the one before is learned, and
        that never is.
    Allows: padding at the ends of rows, and of the parts that rows were joined of; masked tokens;
        padding that is predicted where nothing else tells the end.
        Losses without a reduction, which are perhaps masked later.
    Misses: embeddings whose tokens no loss is about, in runs without an evaluation; numbers that
        come in fewer than 4 places.
    Why: the row of padding_idx gets no gradient, and what is ignored is never predicted: the most
        frequent item, with the number 0, is unknown to the model. And what is counted beyond the
        ends of sequences drowns what is to be learned, in losses and accuracies. A model that
        never learns the end of a sequence generates without one.
    Source: torch.nn.Embedding (padding_idx: "it remains as a fixed pad"); transformers#23530
        (pad_token = eos_token, whose labels are -100); ibalazevic/TuckER issue 17.
    """
    told = set[str]()
    for probe in events(trace, Probe):
        if probe.probe == "padding inside" and probe.label.split(" ")[0] not in told:
            yield _as_any_token(trace, probe)
        if probe.probe == "packed" and probe.step >= _LEAST:
            yield _beyond_the_ends(trace, probe)
        if probe.probe == "filled" and probe.step >= _LEAST:
            yield _as_a_class(trace, probe)
        if probe.probe == "ended" and probe.measured >= _LEAST:
            yield Finding(
                f"`{trace.subject}` never learns where its sequences end",
                f"the targets of {probe.label}",
                portion(probe.measured, probe.reference, "steps")
                + " have rows that all end with the token of padding, and leave it out",
                "a target for the end of each row",
                why="the loss leaves out the token of padding wherever it is: give padding its own"
                " number, or leave it out by the lengths of the rows",
                event=probe,
            )
        if probe.probe != "padding" or probe.measured < max(_LEAST, probe.reference / 2):
            continue
        name, _, how = probe.label.partition(" ")
        told.add(name)
        learned = how == "learned"
        yield Finding(
            f"the padding index of `{trace.subject}` is a token of the data",
            f"row {probe.step} of {name}",
            portion(probe.measured, probe.reference, "steps")
            + " have it between other tokens, "
            + ("and learn to predict it" if learned else "and the loss leaves it out"),
            "at the ends of rows alone",
            why=f"{name} never learns this row: give padding a number that no token has"
            if learned
            else "it is never predicted: give padding a number that no token has",
            event=probe,
        )


@invariant("loop", evidence=has_probe("attended", "no attention over padded tokens was seen"))
def attention_sees_tokens(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The attention mask hides padding, and not the real tokens instead.

    Judges: tables of tokens that an embedding reads, on the CPU, whose rows end or begin with runs
        of one token, of different lengths, and each attention over as many places: whether exactly
        the padding has weights above zero, or is what a fused attention is not told to hide. In
        most of the steps that were looked at, 3 at least.
    Allows: padding that is seen beside tokens, as where no mask is given.
    Misses: attention that is neither a softmax nor a fused one of torch; rows of one length.
    Why: where a mask marks what is real and True means to hide, each token is hidden: what is
        learned goes around the attention, and the loss falls all the same.
    Source: torch.nn.MultiheadAttention (key_padding_mask: "True indicates that the corresponding
        key value will be ignored"), scaled_dot_product_attention (True: "take part in attention").
    """
    for probe in events(trace, Probe):
        if probe.probe == "attended" and probe.measured >= max(_LEAST, probe.reference / 2):
            yield Finding(
                f"attention in `{trace.subject}` sees only the padding",
                f"the tokens of {probe.label}",
                portion(probe.measured, probe.reference, "steps") + " hide all but the padding",
                integer(0),
                why="its mask means the opposite: key_padding_mask and masked_fill are given True"
                " where a place is to be hidden, scaled_dot_product_attention where it is to be"
                " seen",
                event=probe,
            )


@invariant("loop", evidence=has_probe("blended", "no map of classes was resized"))
def classes_are_not_blended(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Segmentation maps are resized without interpolating between class indices.

    Judges: targets of cross_entropy and nll_loss, on the CPU and made in the process itself, that
        are what F.interpolate made of whole numbers, with their fractions dropped or rounded, or
        parts of it, as they are or mirrored.
    Allows: maps of two numbers, which are masks; of more than 64, which are pictures; whatever is
        resized to the same numbers.
    Misses: maps that workers of a loader resize; other libraries.
    Why: halfway between class 1 and class 3 lies class 2, which is nowhere in the picture: each
        border gets a thin line of wrong labels.
    Source: torch.nn.functional.interpolate (mode="nearest"); torchvision's reference scripts for
        segmentation, which resize targets by InterpolationMode.NEAREST.
    """
    for probe in events(trace, Probe):
        if probe.probe == "blended" and probe.measured >= _LEAST:
            yield Finding(
                f"the classes of `{trace.subject}` are blended where their maps are resized",
                "targets that F.interpolate has made",
                portion(probe.measured, probe.reference, "targets") + " have blended classes",
                "none",
                why='resize maps of classes with mode="nearest"',
                event=probe,
            )


def _as_any_token(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a number for padding that comes as all others do."""
    name, _, how = probe.label.rpartition(" ")
    is_category = how == "category"
    where = "for whole samples, as one category of many" if is_category else "between other tokens"
    return Finding(
        f"the padding of `{trace.subject}` is a "
        + ("category" if is_category else "token")
        + " of its own",
        f"row {probe.step} of {name}",
        portion(probe.measured, probe.reference, "looks") + f" have it {where}",
        "of what is unknown alone" if is_category else "at the ends of rows alone",
        why=f"{name} never learns this row, which stays as it was made: leave padding_idx out"
        + (", unless it stands for what is unknown" if is_category else "")
        + ", or count what is real from another number on",
        rank=Rank.BROKEN if how == "inside" else Rank.NOTE,
        event=probe,
        source=probe.source,
    )


def _as_a_class(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about targets of padding that are those of a class."""
    few = probe.label == "ended" and probe.measured < _FEW_OF_ALL * probe.reference
    return Finding(
        f"`{trace.subject}` learns from the padding of its sequences",
        "a loss over each place of rows that end in padding",
        portion(probe.measured, probe.reference, "targets")
        + (
            " stand at padding, after a token that tells the end of their row,"
            if probe.label == "ended"
            else " stand at padding, all of one class that others have too,"
        )
        + " and count in the loss",
        "none of them",
        why="pad the targets with what the loss ignores, as padding_value=-100 does, and leave"
        " these places out of the accuracy",
        rank=Rank.NOTE if few or probe.label == "perhaps" else Rank.BROKEN,
        event=probe,
    )


def _beyond_the_ends(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about scores that were made of nothing but padding."""
    last = probe.label == "last"
    return Finding(
        f"`{trace.subject}` learns from the padding of its sequences",
        "a loss over sequences that were packed by their lengths",
        portion(probe.measured, probe.reference, "scores")
        + " are made beyond the ends, and count in the loss",
        "none of them",
        why="the last place of most rows is padding: take each at its length - 1, or the state that"
        " the layer returns"
        if last
        else "pad the targets with what the loss ignores, as padding_value=-100 does",
        event=probe,
    )


@invariant("loop", evidence=steps_from(5))
def data_keeps_up(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Training does not spend most of its time waiting for data.

    Judges: the median share of a step that is spent waiting for a loader, after the first step of
        the busiest optimizer, over 5 steps or more. What is found is a note.
    Allows: half of the time (limit: a share), and waits below 0.02 seconds.
    Misses: data that is prepared outside of a loader; bursts that the median does not see.
    Why: a device that waits is paid for; a projection of 32 days was taken for granted.
    Source: PyTorch's performance tuning guide, on asynchronous data loading.
    """
    course = main_course(trace)
    steps = [s for s in (course.every[1:] if course else ()) if s.seconds > 0 and not isnan(s.wait)]
    share = middle(step.wait / step.seconds for step in steps)
    allowed = trace.limit("data_keeps_up", 0.5)
    if course and len(steps) >= 5 and share > allowed and middle(s.wait for s in steps) >= 0.02:
        slow = max(steps, key=lambda s: s.wait)
        yield note(
            f"`{trace.subject}` waits for its data most of the time",
            f"median of {len(steps)} steps, longest at " + course.at(slow),
            percent(share) + f" of {number(middle(s.seconds for s in steps))} s per step",
            percent(allowed),
            why="more workers, or less work per sample, would shorten each step",
            event=slow,
        )


@invariant("loop", evidence=has_probe("stored", "no data set was served twice that stores samples"))
def stored_samples_stay(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Serving a sample does not modify what the data set stores.

    Judges: data sets that are trained on in two epochs or more, by a loader without workers. Six
        samples are served with the same random numbers twice, and with others between: in two of
        4 tries or more, 18 values or more of one array change, and so does what is served.
    Allows: what is filled or normalised the first time; buffers and statistics, which change
        whichever sample is served; a change below 0.001 of the largest value, or below 0.00002
        where the servings before have changed it by more; data sets whose __getitem__ stores into
        `self.name[...]`, on purpose.
    Misses: data without a loader, or that workers load; more than 128 MiB; mapped files and shared
        memory; runs on an accelerator.
    Why: a row of an array is a view. An augmentation that works in place is then applied anew in
        each epoch to what is left by the last one, and the data degrade.
    Source: facebookresearch/pycls pull request 21; sefibk/KernelGAN issue 35; pytorch/vision issue
        680.
    """
    for probe in events(trace, Probe):
        if probe.probe == "stored":
            yield Finding(
                f"serving a sample of `{trace.subject}` changes what its data set stores",
                probe.label,
                integer(probe.measured, "stored values") + " change when six samples are served",
                integer(0),
                why="it works in place on a view of what is stored: copy the sample first",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("shared setting", "no part of a split was served"),
        has_probe("lost setting", "-"),
        has_probe("copied setting", "-"),
    ),
)
def parts_keep_their_settings(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Setting a transform or option on one split or copy of a data set leaves the others alone.

    Judges: parts of random_split, or of Subset, that share one data set, where a line such as
        `val_set.dataset.transform = None` sets something of it and is what another part is served
        with: which had it set by a line before, otherwise, or is trained on and had something else
        there when it was split. A part with a setting of its own by a name that its data set has
        another one by: nothing asks the part. Shallow copies of a data set, of which one is trained
        on and the other is not: plain values in a dictionary or object that both have, which were
        set since.
    Allows: what is set of the data set by its own name, or the same for each part; what is set anew
        before the part is served; statistics of the part that is trained on, set through that part.
    Misses: the augmentation of a training set that comes to an evaluation which had none; lines in
        other functions than those that make the loaders or serve them.
    Why: a Subset holds indices and the data set itself, not a copy: the last line that sets a
        transform sets it for all, so the training is not augmented, or the validation is.
    Source: pytorch.org/docs/stable/data.html (Subset);
        discuss.pytorch.org/t/apply-different-transform-to-train-and-validation/63580.
    """
    for probe in events(trace, Probe):
        if probe.probe == "shared setting":
            name, part, value, own = probe.label.split("\n")
            yield Finding(
                f"what `{part}` sets of its data set holds for other parts in `{trace.subject}`",
                f"{part}.dataset.{name}",
                f"{value}, also where another part is served",
                f"{own}, as that part has set it" if own else "what it was at the split",
                why="the parts of a split share one data set: give each one of its own,"
                " `Subset(Data(..., transform=...), part.indices)`",
                event=probe,
                source=probe.source,
            )
        elif probe.probe == "lost setting":
            name, data = probe.label.split("\n")
            yield Finding(
                f"`{name}` of a part of a split is set where nothing reads it in `{trace.subject}`",
                f"`{name}` of a Subset of {data}",
                f"another `{name}` is in use, that of its `dataset`",
                "the one that is set",
                why="a Subset only passes indices on to its data set: give each part a data set of"
                f" its own, `Subset({data}(..., {name}=...), part.indices)`",
                event=probe,
                source=probe.source,
            )
        elif probe.probe == "copied setting":
            place, name, was, now = probe.label.split("\n")
            yield Finding(
                f"a data set of `{trace.subject}` and its copy share their settings",
                f"{name} in {place}",
                f"{now} for the data that are trained on and for the others",
                f"{was}, as it was when they were copied, for one of them",
                why="copy.copy() copies what stands in a data set by reference: copy.deepcopy(), or"
                " a dictionary of its own for each",
                event=probe,
                source=probe.source,
            )
