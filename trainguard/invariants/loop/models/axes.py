"""Judgements of axes: whether what is viewed, scaled or read is what its place says."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_LEAST = 2  # steps: the first may be odd
_LEAST_CROSSED = 4  # steps: a network needs a few to find out which column is which
_MADE = {"-": "what a layer has made", "input": "the input of a layer"}


@invariant(
    "loop",
    evidence=either(
        has_probe("reshaped", "no view was seen in the graph of a loss"),
        has_probe("interleaved", "-"),
    ),
)
def reshapes_exchange_no_axes(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Axes are swapped with `permute` or `transpose`, not with `view` or `reshape`.

    Judges: views and reshapes in the graph of a loss. Of what a convolution made, (N, C, ...),
        those with channels, or equal parts of them, in the last axis. Of other layers, those that
        give (N, T, D) the shape (N, D, T), (N, heads, T, D / heads) or (N, D, H, W), and those that
        give (N, heads, T, K) the shape (N, T, heads * K). Of inputs, those that a layer is given
        as (N, D, T) and that are (N, T, D), or as (N, C, H, W) and are (N, H, W, C).
        Parts of channels that later layers learn from, as capsules do, are a note. Pictures of 3 to
        8 channels, (N, C, H, W), in the first passes: whether neighbours are alike where the same
        numbers are read as (N, H, W, C), in both directions, and by less than half as they are.
    Allows: axes that are split, merged or left as they are; what was joined, padded or cut before,
        as for relative positions; what is reduced over the last axis.
    Misses: sizes that are equal; (N, D, T) where one size divides the other, unless a convolution
        comes next, or a forward of the model names its axes and views an input of it in another
        order of these names; pictures without likeness of neighbours, or of less than 20,000
        numbers in a pass; torch 2.4, which does not tell what a view made.
    Why: view() and reshape() go by the order in memory. The shape is right, and each row holds
        neighbouring places of one channel instead of the channels of one place.
    Source: torch.Tensor.view and torch.Tensor.permute; lufficc/SSD, where box heads are permuted
        before they are viewed, and discuss.pytorch.org/t/difference-between-view-and-permute.
    """
    ranks = {"reshaped": Rank.BROKEN, "reshaped in part": Rank.NOTE}
    for probe in events(trace, Probe):
        if probe.probe in ranks and probe.measured >= _LEAST:
            name, before, after = probe.label.split(" ")
            yield Finding(
                f"a reshape in `{trace.subject}` is used to swap axes, and mixes up the"
                " values instead",
                _MADE.get(name) or f"what {name} has made",
                f"{before} reshaped to {after} in "
                + portion(probe.measured, probe.reference, "steps"),
                "the numbers of one place beside each other",
                why="view() and reshape() leave numbers in the order of memory: permute() or"
                " transpose() first, then reshape",
                rank=ranks[probe.probe],
                event=probe,
            )
        elif probe.probe == "interleaved" and probe.measured == probe.reference > _LEAST:
            yield Finding(
                f"images of `{trace.subject}` are channels last, and have a channels-first shape",
                f"inputs of {probe.label}",
                "neighbours are alike as (N,H,W,C), and not as given, in "
                + integer(probe.measured, "passes"),
                "neighbours that are alike as the pictures are given",
                why="reshape() leaves numbers in the order of memory: permute(0, 3, 1, 2) instead",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("read", "no state at the last place of padded rows was seen"))
def states_are_read_at_tokens(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The last state of a padded sequence is read at its last real token, not at padding.

    Judges: states of (N, T, D) or (T, N, D) of which a loss reads the last place alone, and of rows
        of tokens that an embedding reads, on the CPU, with padding at their ends: how many of them
        end in it. Half of the rows and more, in most of the steps that were looked at, 3 at least.
        Padding is the padding_idx of the embedding, or a token that comes at ends only. So are
        features that a model is given, which are zero at ends only, where batches differ in their
        length or lengths or a mask come with them.
    Allows: rows of one length; padding before the tokens; packed sequences; other places that are
        read too, as by a mean or by attention.
    Misses: the last hidden state that a recurrent layer returns beside all states; gathers.
    Why: states[:, -1] is the state after the longest row of the batch. That of each other row has
        gone on over padding, and a causal model sees nothing there: what the row said fades.
    Source: torch.nn.utils.rnn.pack_padded_sequence; huggingface/transformers (sequence
        classification of GPT-2 looks for the last token that is no padding).
    """
    for probe in events(trace, Probe):
        if probe.probe == "read" and probe.step >= max(_LEAST + 1, probe.reference / 2):
            yield Finding(
                f"`{trace.subject}` reads the state of most sequences in their padding",
                f"the last place of {probe.label}",
                percent(probe.measured) + " of the rows end in padding",
                "read at the last token",
                why="take the states at lengths - 1, or pack the sequences",
                event=probe,
            )


@invariant("loop", evidence=has_probe("cosines", "no loss was over products of two tables"))
def similarities_are_of_unit_rows(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Embeddings that are compared are normalised one by one, not over the batch or the views.

    Judges: products of two tables that were both made in the step, (N, K) and (K, M), on the CPU,
        in the graph of a loss: those whose columns have one norm over the samples, on both sides,
        while the rows that are multiplied have not; and two of (N, K) whose squares add up to one
        in each place, as those of (N, 2, K) do after normalize(x). In two steps or more. A norm
        other than one is that of a quotient by norms, times a number. Batches of tables are a note,
        and one side over the samples where the other is right.
    Allows: products over the samples, as of redundancy reduction; columns at right angles, or of a
        mean of zero, as standardised features have; tables of fewer than 8 rows, or as many as
        columns.
    Misses: one side alone; other norms.
    Why: after normalize(x, dim=0) a similarity is no cosine: its size depends on the batch, a
        temperature means nothing, and each row knows the others.
    Source: torch.nn.functional.normalize (dim=1); the NT-Xent loss of arXiv:2002.05709, whose
        embeddings have a norm of one; alireza-nasiri/SoundCLR issue 4.
    """
    ranks = {"cosines": Rank.BROKEN, "cosines, perhaps": Rank.NOTE}
    for probe in events(trace, Probe):
        if probe.probe in ranks and probe.measured >= _LEAST:
            views = probe.label.startswith("two views")
            over = "views" if views else "batch"
            yield Finding(
                f"the embeddings that `{trace.subject}` compares are normalised over the {over}",
                "embeddings: " + probe.label if views else "embeddings of shape " + probe.label,
                portion(probe.measured, probe.reference, "steps")
                + (" have pairs of numbers" if views else " have columns of one norm")
                + (" of unit norm, and rows of another" if views else ", and rows of others"),
                "rows of unit norm",
                why="normalize over the features, dim=-1: the default is dim=1"
                if views
                else "normalize over the features, dim=1 or dim=-1, and not over the samples",
                rank=ranks[probe.probe],
                event=probe,
            )


@invariant("loop", evidence=has_probe("attention axis", "no attention by hand was seen"))
def attention_weights_are_used_along_their_axis(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Attention weights are normalised along the axis that the weighted sum runs over.

    Judges: products of matrices, in the graph of a loss, one of which is a softmax of products of
        queries and keys that learn: whether the sum of the product runs along the axis of the
        softmax. A note where there are more or fewer queries than keys, and none is masked.
    Allows: dropout and views between the softmax and the product; weights that are divided by their
        sum after the softmax, as those of slots that compete; products of two distributions.
    Misses: attention without a batch, or whose weights are multiplied and summed; torch 2.4, which
        does not tell what a view made.
    Why: after softmax(dim=1) of scores (N, queries, keys) the queries compete for each key. What a
        query reads then has any size, and depends on which other queries are asked beside it.
    Source: arXiv:1706.03762, section 3.2.1 (the weights on the values are a softmax over the keys);
        torch.nn.functional.scaled_dot_product_attention (dim=-1).
    """
    ranks = {"attention axis": Rank.BROKEN, "attention axis, perhaps": Rank.NOTE}
    for probe in events(trace, Probe):
        if probe.probe in ranks and probe.measured >= _LEAST:
            yield Finding(
                f"attention weights of `{trace.subject}` are normalised along the wrong axis",
                probe.label,
                portion(probe.measured, probe.reference, "steps")
                + " sum the weights of another axis",
                "weights that sum to one over the keys",
                why="take the softmax over the axis that the product with the values sums: dim=-1"
                " of scores (..., queries, keys)",
                rank=ranks[probe.probe],
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("attention scale", "no scores of attention were seen"))
def attention_scores_are_divided(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Attention scores are divided, not multiplied, by the square root of the head dimension.

    Judges: scaled_dot_product_attention, and softmaxes of products, in the graph of a loss, of
        queries and keys as a linear layer, a convolution or an embedding has made them, 8 wide or
        more: whether all constants in between multiply to the root of the width, within 1 %, in two
        steps or more. A note where that is a whole number, and no module of the script has a line
        with a root.
    Allows: any other factor, such as none, a temperature, or the width itself; scales that are
        learned; queries and keys that are normalised or changed by anything else.
    Misses: roots of another width, as of all heads; rotary positions; torch 2.4, where it does not
        tell constants.
    Why: the size of a product of D numbers grows with the root of D. Multiplied by it once more the
        softmax is nearly a maximum, and little gradient goes through it.
    Source: arXiv:1706.03762, section 3.2.1; esceptico/perceiver-io issue 9 (scores divided by
        `dim ** -0.5`).
    """
    ranks = {"attention scale": Rank.BROKEN, "attention scale, perhaps": Rank.NOTE}
    for probe in events(trace, Probe):
        if probe.probe in ranks and probe.measured >= _LEAST:
            width = int(probe.label)
            yield Finding(
                f"scores of attention of `{trace.subject}` are multiplied by the root of their"
                " width",
                f"heads of width {width}, in "
                + portion(probe.measured, probe.reference, "steps that were looked at"),
                number(width**0.5, "times the product of queries and keys"),
                number(width**-0.5, "times it") + f", which is 1 / sqrt({width})",
                why="divide by sqrt(width), or multiply by width ** -0.5: perhaps a scale that is"
                " meant for the one is used for the other",
                rank=ranks[probe.probe],
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("crossed", "no loss was a distance of a few columns"))
def columns_go_with_their_targets(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each output column is compared with its own target column.

    Judges: mse_loss, l1_loss, smooth_l1_loss and huber_loss of two to eight columns and 24 rows or
        more, at steps 1, 2, 4, 8, ...: whether two columns are each correlated with the target of
        the other one by 0.8 or more, and with their own by 0.3 less, in four such steps or more,
        and in all but one of them.
    Allows: targets that are correlated with each other by more than 0.5; columns that are the
        target itself; losses that are tried in several orders, one of which fits.
    Misses: losses by hand; columns that a network learns to exchange in its first steps.
    Why: a grid whose rows are taken for x, or boxes as (y, x) against (x, y), cannot be learned
        away where the place of a cell is added to what the network says of it.
    Source: PyTorch, torch.meshgrid (indexing="ij" is (row, column), as NumPy's "xy" is not).
    """
    for probe in events(trace, Probe):
        seldom = probe.measured < max(_LEAST_CROSSED, probe.reference - 1)
        if probe.probe == "crossed" and not seldom:
            yield Finding(
                f"two columns of `{trace.subject}` are compared with each other's targets",
                probe.label + " of what is predicted",
                "each goes with the target of the other one in "
                + portion(probe.measured, probe.reference, "steps"),
                "each goes with its own",
                why="perhaps x and y, or rows and columns, are exchanged on one side, as by"
                ' meshgrid(indexing="ij")',
                event=probe,
            )
            return


@invariant("loop", evidence=has_probe("one place", "no module with a table of positions was seen"))
def places_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A positional embedding differs from position to position.

    Judges: parts of a learning module that hold a table of positions of their own, by its name, and
        that return a sequence of zeros, of 3 samples and 5 places, in its shape: whether all places
        of all samples get the same numbers, in evaluation mode.
    Allows: tables of fewer than 6 rows, or of equal ones; parts that take anything else.
    Misses: tables that the model adds by itself; places that get those of the sample.
    Why: one row of the table was added to all places: the order of a sequence is lost, and what
        attends to it sees a bag of tokens.
    Source: DiffPoseTalk/DiffPoseTalk issue 20 (pe[:, T, :] where pe[:, :T, :] is meant).
    """
    for probe in events(trace, Probe):
        if probe.probe == "one place":
            kind, _, name = probe.label.partition(" ")
            yield Finding(
                f"a table of positions of `{trace.subject}` gives all places the same numbers",
                f"{name}, a {kind}",
                integer(1, "row") + f" of numbers for {integer(probe.measured)} places",
                integer(probe.measured, "rows") + ", that differ",
                why="perhaps a colon is missing: pe[:, :T], the rows of the first T places, and"
                " pe[:, T], one row that is added to all",
                event=probe,
            )
