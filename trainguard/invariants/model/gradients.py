"""Judgements of what flows back to the parameters of a fresh model."""

import re
from collections.abc import Iterator
from math import isfinite
from statistics import correlation

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.wording import number, of

_BROKEN, _NOTED = 1e-7, 1e-5
_TREND, _FEWEST = 0.8, 3
_REASONS = {
    "uncalled": "its module is never called: left out of forward, or for an input not declared",
    "unreached": "autograd never reaches it: detached, under no_grad, of no effect on the loss, or"
    " for an input not declared",
    "zero": "its gradient is exactly zero: a factor of zero that never moves, or dead units",
}


@invariant("model", probe="backward")
def every_parameter_receives_gradient(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Every trainable parameter receives a finite gradient.

    Judges: what the declared loss, the model's own, or a fixed random projection of all outputs
        hands back to each parameter that requires a gradient: in up to four passes over fresh
        batches with small steps in between, in evaluation mode, and from two more seeds.
    Allows: parameters named by `frozen=` or `unused=`; what lies behind a gate that starts at zero
        and opens (ReZero, adaLN-zero, low-rank adapters); layers that chance or the data choose,
        which shows in siblings that receive a gradient in some passes only; a bias whose own
        weight receives one and whose own is exactly zero, as before a normalisation.
    Misses: a layer forgotten among siblings that the data choose; embeddings of which only some
        rows are used; gradients that are too small to matter.
    Why: a branch that was detached, a module that forward forgot, or two factors that both start
        at zero stay as they were initialised, while the loss falls without them.
    Source: torch.nn.parallel.DistributedDataParallel (find_unused_parameters exists for it).
    """
    passes = _merge_cases(trace)
    chosen = {_open(seen.place) for seen in passes.values() if 0 < seen.count < seen.of}
    reached = {seen.place.rpartition(".")[0] for seen in passes.values() if seen.count}
    missing = [
        seen
        for seen in passes.values()
        if not seen.count and _open(seen.place) not in chosen and not _is_bias(seen, reached)
    ]
    for place, seen in _by_module(missing, passes):
        yield Finding(
            f"a parameter of `{trace.subject}` receives no gradient",
            place,
            "in " + portion(0, seen.of, "passes"),
            "in at least " + portion(1, seen.of, "passes"),
            why=_REASONS[seen.detail],
            event=seen,
        )
    yield from _unsound(trace, passes)


def _unsound(trace: Trace[Pass], passes: dict[str, Pass]) -> Iterator[Finding]:
    """Yield a finding for each gradient that is not finite though the loss is."""
    for seen in passes.values():
        if seen.detail == "not finite":
            yield Finding(
                f"the gradient of a parameter of `{trace.subject}` is not finite",
                seen.place,
                "nan or infinite",
                "finite",
                why="perhaps the root or the norm of zero, or a torch.where branch not taken",
                event=seen,
            )


def _merge_cases(trace: Trace[Pass]) -> dict[str, Pass]:
    """Return of each parameter the case in which it received the most, or a gradient like nan."""
    found: dict[str, Pass] = {}
    for seen in of(trace, "gradient"):
        known = found.get(seen.place)
        unsound = seen.detail == "not finite"
        if known is None or unsound or (known.detail != "not finite" and known.count < seen.count):
            found[seen.place] = seen
    return found


def _open(name: str) -> str:
    """Return a parameter's name with the numbers in it left open: `experts.#.up.weight`."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


def _is_bias(seen: Pass, reached: set[str]) -> bool:
    """Say whether a gradient is that of a shift which what follows takes out again."""
    module, _, own = seen.place.rpartition(".")
    return seen.detail == "zero" and "bias" in own and module in reached


def _by_module(missing: list[Pass], passes: dict[str, Pass]) -> Iterator[tuple[str, Pass]]:
    """Yield each outermost module that lacks all its gradients, and one of its parameters."""
    lacking = {seen.place for seen in missing}
    told: dict[str, list[Pass]] = {}
    for seen in missing:
        parts = seen.place.split(".")
        scopes = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        whole = (
            scope
            for scope in scopes
            if all(name in lacking for name in passes if name.startswith(f"{scope}."))
        )
        told.setdefault(next(whole, seen.place), []).append(seen)
    for scope, (first, *others) in told.items():
        yield f"{scope}.* ({1 + len(others)} parameters)" if others else first.place, first


@invariant("model", probe="backward")
def layer_gradients_are_balanced(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Gradients neither vanish nor explode across the depth of a fresh model.

    Judges: the root mean square of each weight's gradient, of at least 3 weights of two or more
        dimensions that every pass reached: the smallest over the largest, where they rise or fall
        with depth (a rank correlation of 0.8 with the order in the model).
    Allows: a ratio of 1e-7 (limit); below 1e-5 it is a note. What lies behind a gate that starts
        at zero.
    Misses: single layers that are out of step with their neighbours; models whose parameters are
        registered in another order than they are used in; imbalance that comes with training.
    Why: sigmoids in a row, or weights that are too large, make a stack of which only one end
        learns.
    Source: Glorot and Bengio, 2010.
    """
    least = trace.limit("layer_gradients_are_balanced", _BROKEN)
    for case in sorted({seen.case for seen in trace}):
        layers = [seen for seen in of(trace, "gradient") if seen.case == case and _weighs(seen)]
        if len(layers) < _FEWEST:
            continue
        low, high = (pick(layers, key=lambda seen: seen.measured) for pick in (min, max))
        ratio, slope = low.measured / high.measured, _slope([seen.measured for seen in layers])
        if ratio < max(_NOTED, least) and abs(slope) >= _TREND:
            verb = "vanish" if slope > 0 else "explode"
            yield Finding(
                f"the gradients of `{trace.subject}` {verb} toward its first layers",
                f"{low.place} against {high.place}",
                "ratio " + number(ratio),
                "ratio " + number(least if ratio < least else _NOTED),
                why="perhaps activations that saturate, or an initialisation of the wrong size",
                rank=Rank.BROKEN if ratio < least else Rank.NOTE,
                event=low,
            )
            return


def _weighs(seen: Pass) -> bool:
    """Say whether a gradient is that of a weight, and flowed in every pass."""
    flowed = seen.count == seen.of and seen.measured > 0 and isfinite(seen.measured)
    return flowed and seen.reference >= 2 and seen.detail == ""


def _slope(sizes: list[float]) -> float:
    """Return the rank correlation of gradients with the order in the model, -1 to 1."""
    order = sorted(sizes)
    ranks = [order.index(size) for size in sizes]
    return correlation(range(len(ranks)), ranks) if len(set(ranks)) > 1 else 0.0
