"""Judgement of layers that are frozen with the random numbers that they were made with."""

from collections.abc import Iterator, Sequence

from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.trace import Trace

_RECURRENT = ".weight_hh_l"  # of a reservoir, which is random by design


def find_frozen_as_drawn(
    trace: Trace[Event], parameters: Sequence[Parameter], steps: int
) -> Iterator[Finding]:
    """
    Yield a finding about each model with layers that are frozen as they were drawn.

    A note, where most of the model learns. Broken, where it is the last layer of a model of which
    all else that is frozen has learned something. steps: how many were made.
    """
    weights = [p for p in parameters if p.called and p.dimensions > 1]
    new = [p for p in weights if p.drawn and not (p.trainable or p.loaded or p.thawed)]
    for root in dict.fromkeys(_part(p, 1) for p in new):
        own = [p for p in weights if _part(p, 1) == root]
        drawn = [p for p in new if p in own]
        if _is_lone_head(drawn, own):
            yield _make_finding(trace, drawn[0], Rank.BROKEN, steps)
            continue
        own = [p for p in own if not p.thawed]
        frozen = [p for p in own if not p.trainable]
        found = [p for p in drawn if not _is_meant_to_stay(p, own)]
        few = 2 * sum(p.elements for p in frozen) < sum(p.elements for p in own)
        learning = {p.module for p in own if _learns(p)}
        if found and few and len(learning) > len({p.module for p in frozen}):
            yield _make_finding(trace, found[0], Rank.NOTE, steps)


def _learns(one: Parameter) -> bool:
    """Say whether an optimizer has moved a parameter by its gradients."""
    return one.held and one.moved and one.received > 0


def _is_lone_head(drawn: Sequence[Parameter], own: Sequence[Parameter]) -> bool:
    """Say whether a model's last weight alone is frozen without having learned, beside adapters."""
    frozen = [p for p in own if not (p.learns if p.thawed else p.trainable)]
    known = [p for p in frozen if p.loaded or (p.thawed and p.moved)]
    alone = drawn == own[-1:] == [p for p in frozen if p not in known]
    return alone and bool(known) and any(_learns(p) for p in own if p not in frozen)


def _make_finding(trace: Trace[Event], one: Parameter, rank: Rank, steps: int) -> Finding:
    """Return the finding about a layer."""
    if rank is Rank.BROKEN:
        return Finding(
            f"the last layer of `{trace.subject}` is frozen as torch has drawn it",
            one.module or one.name,
            "random numbers in all of " + integer(steps, "steps"),
            "learned, as the layers have that are frozen with it",
            why="a new head is to learn beside adapters: freeze the rest, and then add it, or"
            " thaw it",
            event=one,
        )
    return Finding(
        f"a layer of `{trace.subject}` is frozen as torch has drawn it",
        one.module or one.name,
        "random numbers in all of " + integer(steps, "steps"),
        "learned as the layers around it are, or loaded",
        why="perhaps it was frozen for another model, or one whose weights were to be loaded. A"
        " projection that is meant to be random can be a buffer",
        rank=rank,
        event=one,
    )


def _is_meant_to_stay(one: Parameter, own: Sequence[Parameter]) -> bool:
    """Say whether a frozen weight may be of a reservoir, or of a helper of several layers."""
    if any(p.module == one.module and _RECURRENT in p.name for p in own):
        return True
    part = [p for p in own if _part(p, 2) == _part(one, 2)]
    return len({p.module for p in part}) > 1 and not any(p.trainable for p in part)


def _part(parameter: Parameter, names: int) -> tuple[str, ...]:
    """Return the first names of a parameter's: those of its model, and of a part of that."""
    return tuple(parameter.name.split(".")[:names])
