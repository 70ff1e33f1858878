"""Judgements of sequences: how long they are cut, whether they go on, and what pads them."""

from collections import Counter
from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.loader.wording import Split, each_split, servings
from trainguard.invariants.loop.wording import percent

_FEW = 4  # seams from which on a share of them says something
_TORN = {"seam by targets": 0.0, "seam by signal": 0.2, "seam by followers": 0.5}
_HOW = {
    "seam by targets": "the last target of a chunk is not the first input of the next",
    "seam by signal": "the signal jumps between chunks, and never as far inside them",
    "seam by followers": "the next epoch puts other chunks after the same ones",
}


@invariant("loader", needs=("chunk",))
def chunk_length_matches_split(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The sequences of each split are cut to the length declared for it.

    Judges: the size along `T` of the batches of the first epoch, where `chunk` is declared; without
        a declared `T`, the second axis of the first input.
    Allows: shorter last chunks; sequences that are all shorter and of several lengths.
    Misses: chunks of the right length from the wrong place; padding up to it.
    Why: a branch for 'eval' that knows neither 'val' nor 'test' falls back to the length that the
        training uses, so that memory and metrics are not those of the configuration.
    Source: pytorch/examples, word_language_model (one bptt cuts the sequences of every split).
    """
    for split in each_split(trace):
        chunk = split.option("chunk")
        lengths = [batch.length for batch in split.first.batches]
        if not isinstance(chunk, int) or not lengths:
            continue
        wrong = _wrong_length(lengths, chunk)
        if wrong is not None:
            yield _length_finding(trace, split, chunk, lengths[wrong], wrong)


def _wrong_length(lengths: list[int], chunk: int) -> int | None:
    """Return the first batch whose length the declared one does not explain."""
    longer = [index for index, length in enumerate(lengths) if length > chunk]
    if longer:
        return longer[0]
    usual, count = Counter(lengths).most_common(1)[0]
    if max(lengths) < chunk and usual == max(lengths) and 2 * count > len(lengths) > 1:
        return lengths.index(usual)
    return None


def _length_finding(
    trace: Trace[Event], split: Split, chunk: int, length: int, index: int
) -> Finding:
    """Say which length was served in place of the declared one."""
    others = [n for n, v in trace.promises.items() if n.startswith("chunk:") and v == length]
    whose = others[0].partition(":")[2] if others else ""
    return Finding(
        f"`{trace.subject}` does not cut the sequences of a split to the declared length",
        f"split {split.name!r}, batch {index}",
        integer(length, "steps"),
        integer(chunk, "steps"),
        why=f"it is the length declared for {whose!r}: perhaps the name of the split is not one"
        " that the code tells apart"
        if whose
        else "",
        event=split.first.batches[index],
    )


@invariant("loader", needs=("chunks",))
def chunks_are_contiguous(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Where state is carried over, each row of a batch continues the same row of the one before.

    Judges: with chunks="stream", the seams between batches: by the targets, where they are the
        inputs one step later; by the signal, where it is smooth; and by what followed the same
        chunk in another epoch. Resets in the middle of a stream are a note.
    Allows: what the field `reset` declares. Without one, half of the seams, since streams begin
        anew. One seam in five of a signal may jump, one in two may be followed by another.
    Misses: whole numbers without targets, and noise, in an order that is the same each epoch.
    Why: shuffling left on, or rows reshaped the wrong way, and the state that is carried belongs to
        another stream: training goes on, and learns to ignore it.
    Source: the word-language-model example of PyTorch, whose batchify() this is about.
    """
    for serving in servings(trace, *_TORN):
        share = serving.measured / serving.reference
        free = serving.detail == "without resets"
        allowed = max(_TORN[serving.quantity], 0.5 if free else 0.0)
        if share > allowed and (serving.reference >= _FEW or serving.quantity.endswith("targets")):
            yield Finding(
                f"the chunks of `{trace.subject}` do not continue the ones before them",
                f"split {serving.split!r}, {serving.at}",
                f"{serving.measured:.0f} of {serving.reference:.0f} seams (" + percent(share) + ")",
                percent(allowed) + " of them" if allowed else "every seam holds",
                why=_HOW[serving.quantity],
                event=serving,
            )
    yield from _needless_resets(trace)


def _needless_resets(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note where most declared resets are at places where the stream goes on."""
    for serving in servings(trace, "reset by targets"):
        share = serving.measured / serving.reference
        if serving.reference >= _FEW and share > 0.5:
            yield note(
                f"`{trace.subject}` declares resets where the stream goes on",
                f"split {serving.split!r}, {serving.at}",
                f"{serving.measured:.0f} of {serving.reference:.0f} resets ("
                + percent(share)
                + ")",
                percent(0.5) + " of them",
                why="what was carried so far is thrown away in the middle of a sequence",
                event=serving,
            )


@invariant("loader")
def padding_is_bounded(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Most of what a batch holds is data, not padding.

    Judges: the share of padded positions in an epoch: by the mask, or where `T` is declared and
        there is none, by rows that end in one repeated value. A note, unless it is limited.
    Allows: 40 % (limit: a share, from which on it is no note).
    Misses: padding that is no constant; sequences of which neither `T` nor a mask is known.
    Why: lengths rounded up to a power of two, or one long sample in a batch of short ones, and
        half of the memory and time go into positions that are thrown away.
    Source: Krell et al., Efficient Sequence Packing without Cross-contamination (arXiv 2107.02027):
        up to half of a batch is padding.
    """
    own = trace.promise("limit:padding_is_bounded")
    allowed = 0.4 if own is None else own
    for serving in servings(trace, "padding"):
        share = serving.measured / serving.reference
        if share > allowed:
            yield Finding(
                f"`{trace.subject}` serves much padding",
                f"split {serving.split!r}" + (f", {serving.at}" if serving.at else ""),
                percent(share) + f" of {serving.reference:.0f} positions, {serving.detail}",
                percent(allowed),
                why="batches of like lengths, or padding to the longest sample of a batch, need"
                " less",
                rank=Rank.NOTE if own is None else Rank.BROKEN,
                event=serving,
            )


_DISAGREE = {
    "inverted": (
        "the mask of `{}` marks the data and keeps the padding",
        "what is kept is all the same, and what is masked is not",
        "perhaps True means padding where it should mean data, or the reverse",
    ),
    "cut": (
        "the mask of `{}` hides data",
        "what is masked is more than the padding",
        "perhaps the lengths are counted from one, or without the last step",
    ),
    "uncovered": (
        "the mask of `{}` keeps padding",
        "they end in a value found nowhere else, all of it kept",
        "perhaps the mask is made before the batch is padded",
    ),
}


@invariant("loader")
def padding_is_masked(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The padding mask marks all padding and nothing else.

    Judges: for each row, what the positions hold that the mask keeps, and those that it does not: a
        mask of the batch's and the sequence's size that is declared, or called attention_mask.
    Allows: one row in ten (limit: a share of the rows); one padding value kept as an end mark;
        padding by repetition or reflection.
    Misses: a mask that is right and not used; padding of floating-point data that the mask keeps.
    Why: a model that attends to padding learns from how long the other samples are.
    Source: transformers' troubleshooting page (huggingface.co/docs/transformers/troubleshooting),
        "Incorrect output when padding tokens aren't masked".
    """
    allowed = trace.limit("padding_is_masked", 0.1)
    for serving in servings(trace, *_DISAGREE):
        share = serving.measured / serving.reference
        if share > allowed and serving.measured > 1:
            summary, rows, why = _DISAGREE[serving.quantity]
            yield Finding(
                summary.format(trace.subject),
                f"split {serving.split!r}, first at {serving.at}",
                percent(share) + f" of {serving.reference:.0f} rows: {rows}",
                percent(allowed) + " of them",
                why=why,
                rank=Rank.BROKEN if serving.detail == "declared" else Rank.NOTE,
                event=serving,
            )
