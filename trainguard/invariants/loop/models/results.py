"""Judgements of what is computed for nothing, and of what comes where it does harm."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, number, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_READ = 0.75  # of the rows: rare numbers may not come in the steps that are looked at
_LEAST = 3  # losses: one may be of a layer that is tried out


@invariant("loop", evidence=has_probe("discarded", "no code of a module or a step could be read"))
def results_are_kept(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The result of an operation that does not work in place is used.

    Judges: the code of the modules that learn, and of the functions that make steps: statements
        such as `x.clamp(0, 1)`, `self.dropout(x)` or `F.relu(x)`, which leave x as it is, and `loss
        + term` or `loss == loss + term`, where `+=` or `=` was meant; a call in a variable of a
        function where another value takes its place before it is read, or of a loop that nothing
        else reads (a note: which nothing ever reads); a sum or product in the variable of a loop
        over parameters, `p = p - rate * p.grad`; what is set in an optimizer.state_dict() or
        model.state_dict() that was just made; and what is made of layers and parameters, and put in
        a variable that nothing reads after that, where none of them that an optimizer holds has got
        a gradient in the run.
    Allows: functions that work in place (`x.clamp_(0, 1)`, inplace=True, out=); layers that have
        an effect of their own, as batch normalisation; names that begin with an underscore; sums
        that a notebook shows at the end of a cell.
    Misses: functions with other names; what is read, if only to be returned; code without a file.
    Why: nothing complains of a value that is dropped: a dropout that never strikes, a gradient that
        is not clipped, a rate that stays as it was.
    Source: kuanghuei/clean-net issue 2 (a dropout whose result nothing reads); pytorch/examples
        issue 64 (a rate that is set in a state_dict); pclucas14/pixel-cnn-pp issue 9 (`==`).
    """
    for probe in events(trace, Probe):
        if probe.probe == "discarded":
            yield Finding(
                f"`{trace.subject}` computes a result and discards it",
                f"`{probe.label}`",
                integer(probe.measured, "statement") + " without an effect",
                "what is computed is used",
                why="assign the result to what is read after it, or write it into the tensor, as"
                " copy_() does",
                rank=Rank.BROKEN if probe.reference else Rank.NOTE,
                event=probe,
            )
    for probe in events(trace, Probe):
        name, _, statement = probe.label.partition("\n")
        if probe.probe == "unread layer" and _is_unreached(trace, name):
            yield Finding(
                f"`{trace.subject}` computes something with parameters, and nothing reads it",
                f"`{statement}`",
                integer(0, "gradients") + f" for {name} in the run",
                integer(1, "gradient") + " or more for each parameter in an optimizer",
                why="perhaps another variable is read after it; else the layer has no use",
                event=probe,
            )


def _is_unreached(trace: Trace[Event], name: str) -> bool:
    """Say whether no gradient came to a parameter, or to those of a layer, that should learn."""
    own = [p for p in events(trace, Parameter) if f"{p.name}.".startswith(f"{name}.")]
    learning = [p for p in own if p.held and p.trainable]
    return bool(learning) and not any(p.received or p.moved for p in own)


@invariant(
    "loop", evidence=has_probe("swapped states", "no LSTM was given a pair of states by name")
)
def states_keep_their_places(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An LSTM is given its hidden and cell states in the order in which it returned them.

    Judges: the code of the modules that learn, and of the functions that make steps: calls of
        nn.LSTM and nn.LSTMCell with a pair of variables, of which the first is what such layers of
        the function return as their cell state, and the second what they return as their output.
    Allows: variables that hold either at different places of a function; pairs that a statement
        such as `h, c = c, h` exchanges; layers of one's own.
    Misses: states in one variable, or of another function; code without a file.
    Why: both have one shape, so that nothing fails: the gates then read the cell, which has no
        bounds, and the memory is what tanh and a gate have left of it.
    Source: the documentation of torch.nn.LSTMCell ("Inputs: input, (h_0, c_0)", "Outputs: (h_1,
        c_1)").
    """
    for probe in events(trace, Probe):
        if probe.probe == "swapped states":
            yield Finding(
                f"an LSTM of `{trace.subject}` is given its two states in the other order",
                f"`{probe.label}`",
                integer(2, "states") + ": (c, h), as the layer returned them",
                integer(2, "states") + ": (h, c), what it returns first comes first",
                why="write `h, c = self.cell(x, (h, c))`: the output first, then the cell state",
                event=probe,
            )


@invariant("loop", evidence=has_probe("doubled", "no loss was handed to backward"))
def sums_are_of_two(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A sum in a module, such as a residual connection, adds two different tensors.

    Judges: what the losses of steps 1, 2, 4, 8, 16 and 32 are made of: sums of several numbers
        whose two sides are one and the same tensor, in 3 (limit) looks or more.
    Allows: a tensor that is multiplied by two, or added to a part or another view of itself; sums
        of single numbers, as of losses.
    Misses: copies, as `x + x.clone()`; what is joined to itself.
    Why: a shortcut keeps what came in. Where its variable was set too late, or the result stands on
        both sides, nothing fails: the layer is a plain one, twice as large, and what came in is
        gone.
    Source: He et al. 2016 (arXiv 1512.03385), equation 1: y = F(x) + x.
    """
    fewest = trace.limit("sums_are_of_two", float(_LEAST))
    for probe in events(trace, Probe):
        if probe.probe == "doubled" and probe.measured >= fewest:
            yield Finding(
                f"`{trace.subject}` adds a tensor to itself",
                f"what {probe.label or 'a layer'} has made",
                integer(2, "sides") + f" are one tensor, at {probe.measured:g} looks",
                integer(2, "sides") + " that differ, as y = F(x) + x",
                why="keep what comes in before it is changed (`shortcut = x`), and add that; where"
                " it is meant, 2 * x says so",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("dropped", "no loss held an output against its target"))
def dropout_spares_the_output(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Dropout comes before the last layer, not between it and the loss.

    Judges: what a loss function of torch is given, in all calls looked at, 3 (limit) or more:
        whether dropout has made it, with nothing but changes of shape in between.
    Allows: dropout before the last layer, and of inputs, weights and attention; noise that is no
        dropout; losses by hand, as of views that dropout makes.
    Misses: dropout before a softmax or a sigmoid of one's own; outputs of which a part is dropped.
    Why: a logit or a prediction that is zero by chance says nothing of its sample, and the others
        are made larger than they are in evaluation: the loss cannot become small.
    Source: PaddlePaddle/Parakeet pulls 74 and 75 (a dropout of logits, taken back).
    """
    least = trace.limit("dropout_spares_the_output", _LEAST)
    for probe in events(trace, Probe):
        if probe.probe == "dropped" and least <= probe.measured == probe.reference:
            yield Finding(
                f"dropout strikes what a loss of `{trace.subject}` compares",
                f"the input of {probe.label}",
                portion(probe.measured, probe.reference, "losses") + " of dropout's own output",
                "no dropout after the last layer",
                why="move the dropout before the last layer, or leave it out",
                event=probe,
            )


@invariant("loop", evidence=has_probe("fields", "no embedding was read by several columns"))
def fields_have_rows_of_their_own(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Fields that share one embedding table use separate rows of it.

    Judges: embeddings that 2 to 64 columns of numbers are looked up in, and that have as many rows
        as these columns have numbers in all, but for a tenth: whether the rows that any column
        reads are less than three quarters (limit) of them.
    Allows: columns of tokens, which all read one vocabulary; rows that no sample has.
    Misses: embeddings with many rows to spare; one column at a time.
    Why: where each field counts from zero, an offset is to take it to its rows: without it user 7
        and item 7 are one, and nothing fails.
    Source: rixwew/pytorch-fm issue 4.
    """
    most = trace.limit("fields_have_rows_of_their_own", _READ)
    for probe in events(trace, Probe):
        if probe.probe == "fields" and probe.measured <= most * probe.reference:
            yield Finding(
                f"fields of `{trace.subject}` share embedding rows instead of using their own",
                f"{probe.step} columns",
                portion(probe.measured, probe.reference, "rows") + " are ever read",
                "rows of their own for each",
                why="add to each column the number of rows that belong to those before it",
                event=probe,
            )


def find_awake(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield what is dropped by chance in the passes that a number of an evaluation is said of."""
    for probe in events(trace, Probe):
        moved = (p for p in events(trace, Parameter) if p.moved and not p.copy)
        own = probe.label.partition(".")[0]
        if probe.probe == "awake" and any(p.name.partition(".")[0] == own for p in moved):
            yield Finding(
                f"`{trace.subject}` evaluates with dropout awake",
                f"{probe.label}, and no module is ever called in evaluation mode",
                number(probe.measured) + ", by which two passes over one input differ",
                number(probe.reference) + " or less, as without what is dropped in this line",
                why="model.eval() is missing before the evaluation, and model.train() after it",
                event=probe,
                source=probe.source,
            )
