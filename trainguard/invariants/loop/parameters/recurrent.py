"""Judgements of what recurrent layers learn from: both directions, and more than one place."""

import re
from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import some
from trainguard.invariants.loop.wording import and_more, events

_STATES = re.compile(r"weight_hh(_l\d+)?(_reverse)?$")  # what layers of torch multiply states by
_REVERSE = "_reverse"
_FEWEST = 20.0  # gradients: states may be zero in the first steps of a curriculum


def _recurs(parameter: Parameter) -> bool:
    """Say whether a parameter multiplies the states of a recurrent layer, and is to learn."""
    able = parameter.trainable and parameter.held and parameter.called and not parameter.copy
    return able and _STATES.search(parameter.name) is not None


@invariant("loop", evidence=some(Parameter, "no recurrent layer of torch learned", _recurs))
def recurrent_layers_go_on(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Recurrent weights receive gradients, in both directions of a bidirectional layer.

    Judges: the weights by which layers and cells of torch multiply their states (weight_hh), with
        20 gradients (limit) or more: whether each of them was exactly zero. Broken where the other
        direction of the same layer learns; a note otherwise.
    Allows: a single gradient that is not zero; layers that are frozen or in no optimizer; layers
        of which nothing is learned at all, which every_trainable_parameter_moves judges.
    Misses: recurrent layers by hand; accelerators whose kernels return no exact zeros.
    Why: at the last place of a sequence the backward direction has seen a single token, and its
        last state is at the first place: `output[:, -1]` reads hardly more than the forward one,
        and `hidden[-1]` the backward one alone. Where nothing goes on from one place to the next,
        sequences have one place, or the state of a cell is not handed on.
    Source: the documentation of torch.nn.LSTM: "For bidirectional LSTMs, h_n is not equivalent to
        the last element of output".
    """
    fewest = trace.limit("recurrent_layers_go_on", _FEWEST)
    every = events(trace, Parameter)
    known = {parameter.name: parameter for parameter in every}
    able = [p for p in every if _recurs(p) and p.received >= fewest]
    still = [p for p in able if p.gradient == 0 and p.dead >= p.received]
    halves = [p for p in still if _learns(known.get(_other(p.name)))]
    if halves:
        yield _one_sided(trace, halves, known)
    whole = [p for p in still if p not in halves and _learns(known.get(_inputs(p.name)))]
    if whole:
        yield Finding(
            f"a recurrent layer of `{trace.subject}` never uses its previous state",
            and_more(p.name for p in whole),
            "a gradient of exactly "
            + integer(0)
            + " in "
            + portion(whole[0].dead, whole[0].received, "steps"),
            "above " + integer(0),
            why="its sequences have length one, or its state is not passed to the next step",
            rank=Rank.NOTE,
            event=whole[0],
        )


def _one_sided(
    trace: Trace[Event], halves: list[Parameter], known: dict[str, Parameter]
) -> Finding:
    """Return the finding of layers of which one direction is not read, or at its first place."""
    one = halves[0]
    unread = not _learns(known.get(_inputs(one.name)))
    side = "backward" if one.name.endswith(_REVERSE) else "forward"
    return Finding(
        f"the {side} direction of a layer of `{trace.subject}` is "
        + ("not read" if unread else "read at its first place alone"),
        and_more(p.name for p in halves),
        "a gradient of exactly " + integer(0) + " in " + portion(one.dead, one.received, "steps"),
        "above " + integer(0) + ", as in the other direction",
        why="the backward direction ends at the first place: read the last states of both, as in"
        " torch.cat([hidden[-2], hidden[-1]], dim=1), or a mean over all places",
        event=one,
    )


def _other(name: str) -> str:
    """Return the name of the same weight in the other direction."""
    return name.removesuffix(_REVERSE) if name.endswith(_REVERSE) else name + _REVERSE


def _inputs(name: str) -> str:
    """Return the name of the weight of the inputs beside one of the states."""
    head, _, tail = name.rpartition("weight_hh")
    return f"{head}weight_ih{tail}"


def _learns(parameter: Parameter | None) -> bool:
    """Say whether a parameter ever had a gradient that is not zero."""
    return parameter is not None and parameter.gradient > 0
