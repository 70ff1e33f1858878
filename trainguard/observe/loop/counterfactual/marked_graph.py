"""Reads a graph in which cuts, and the calls of recurrent layers, are marked."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from trainguard.observe.loop.watch.gradients.autograd_graph import SAME, Node, below, kind_of, saved

CUT, CALL = "trainguard: cut", "trainguard: call"
LEAST_HANDOVERS = 3
_MOST_NODES = 50000
_NEAR = 5000  # nodes from the loss in which noise is looked for
_LEAST_NOISE = 16  # numbers
_ERRORS = 5.0  # standard errors that moments of noise may be off
_MOST_CUTS = 256  # of a line
# What adds terms up, and changes each of them by a constant alone.
_LINEAR = SAME | {
    *("AddBackward", "SubBackward", "RsubBackward", "NegBackward", "MulBackward", "DivBackward"),
    *("SumBackward", "MeanBackward", "StackBackward", "CatBackward", "SelectBackward"),
}
_PRODUCTS = {"MulBackward", "DivBackward"}
_DISTANCES = {"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"}
_SUMS = {"AddBackward", "SubBackward"} | _DISTANCES
# What makes a number of how far a sum is from zero, and is no layer.
_MEASURES = (
    _LINEAR
    | _DISTANCES
    | {
        *("PowBackward", "AbsBackward", "SqrtBackward", "LinalgVectorNormBackward", "NormBackward"),
    }
)


def mark(tensor: torch.Tensor, key: str, token: Any) -> torch.Tensor:
    """Leave a token at the node that made a tensor, if one did, and return the tensor."""
    node: Node = tensor.grad_fn
    if node is not None:
        node.metadata[key] = token
    return tensor


def find_handovers(loss: torch.Tensor, held: set[int]) -> tuple[int, bool, str] | None:
    """
    Return how often a state is handed over, if each time without its graph, and where.

    Each state has to come from the one before alone, by one step in time: where one comes from
    older ones too, some other way through time is left to the gradients.
    """
    segments = _find_segments(loss)
    met = {cut: [node for node in own if node in segments] for cut, own in segments.items()}
    again = {_line_of(cut) for cut, own in met.items() if _line_of(cut) in map(_line_of, own)}
    met = {
        cut: [node for node in own if _line_of(node) in again]
        for cut, own in met.items()
        if _line_of(cut) in again
    }
    turns = _count_turns(met)
    for cut, before in met.items():
        apart = any(turns[node] != turns[cut] - 1 for node in before)
        learns = _has_any(segments[cut], held)  # and is no sample that walks down a slope
        if apart or not learns or not _is_one_step(segments[cut]):
            return None
    most = max(turns.values(), default=0)
    layers = any(CALL in node.metadata for cut in met for node in segments[cut])
    return (most, layers, min(again)) if most >= LEAST_HANDOVERS else None


def _find_segments(loss: torch.Tensor) -> dict[Node, list[Node]]:
    """Return what was detached by lines that do so often, and the nodes up to earlier cuts."""
    cuts = [node for node in _walk([loss.grad_fn]) if CUT in node.metadata]
    counts = Counter(map(_line_of, cuts))
    often = [n for n in cuts if LEAST_HANDOVERS <= counts[_line_of(n)] <= _MOST_CUTS]
    return {cut: list(_walk(_before(cut), at_cuts=True)) for cut in often}


def _line_of(cut: Node) -> str:
    """Return the line that has detached something."""
    return str(cut.metadata[CUT])


def find_dead_terms(loss: torch.Tensor, held: set[int]) -> list[str]:
    """Return the lines of the gradients by which alone a term of a loss could move parameters."""
    found, level = [], [loss.grad_fn]
    while level:
        node = level.pop()
        own = list(_walk([node], at_cuts=True))
        cuts = [n for n in own if CUT in n.metadata]
        if not _has_any(own, held):
            found += [c.metadata[CUT] for c in cuts if _has_any(_walk(_before(c)), held)][:1]
        elif cuts and _is_linear(node):
            level += _before(node)
    return found


def find_dead_parts(loss: torch.Tensor, held: set[int]) -> list[str]:
    """
    Return the lines of gradients that are added to what learns and measured with it, as constants.

    They are of what learns there too: those of another network may be a target.
    """
    found, seen, level = list[str](), set[Node](), [loss.grad_fn]
    while level:
        node = level.pop()
        parts = _before(node)
        if kind_of(node) in _SUMS and len(parts) == 2:
            for one, other in (parts, parts[::-1]):
                own = list(_walk([one], at_cuts=True))
                cuts = [n for n in own if CUT in n.metadata]
                learned = _held_in(_walk([other], at_cuts=True), held)
                if cuts and not _has_any(own, held) and _has_any(_walk(_before(cuts[0])), learned):
                    found.append(_line_of(cuts[0]))
        if kind_of(node) in _MEASURES:
            level += [part for part in parts if part not in seen]
            seen.update(parts)
    return found


def find_sums_with_constants(loss: torch.Tensor) -> Iterator[Node]:
    """Yield the sums that a loss is a mean, a sum or a multiple of, with a part without a graph."""
    seen, level = set[Node](), [loss.grad_fn]
    while level:
        node = level.pop()
        if is_sum_with_constant(node):
            yield node
        parts = _before(node) if _is_linear(node) else []
        level += [part for part in parts if part not in seen]
        seen.update(parts)


def has_noise(loss: torch.Tensor) -> bool:
    """Say whether what learns is multiplied by something like numbers of a normal distribution."""
    products = (
        node
        for node in below(loss.grad_fn, _NEAR)
        if kind_of(node) == "MulBackward" and len(_before(node)) == 1
    )
    return any(map(_has_normal_factor, products))


def _has_normal_factor(node: Node) -> bool:
    """Say whether a factor of a product may be of a normal distribution."""
    with suppress(RuntimeError):  # what was changed since cannot be read
        return any(_is_normal(saved(node, name)) for name in ("self", "other"))
    return False


def _is_normal(numbers: Any) -> bool:
    """Say whether numbers may be of a normal distribution of mean 0 and variance 1."""
    if not isinstance(numbers, torch.Tensor) or not numbers.is_floating_point():
        return False  # a factor may be a plain number
    count = numbers.numel()
    if count < _LEAST_NOISE:
        return False
    mean, square = float(numbers.mean()), float(numbers.square().mean())
    return max(abs(mean), abs(square - 1) / math.sqrt(2)) < _ERRORS / math.sqrt(count)


def is_sum_with_constant(node: Node) -> bool:
    """Say whether a node adds to what has a graph something that has none."""
    return kind_of(node) in ("AddBackward", "SubBackward") and len(_before(node)) == 1


def _held_in(nodes: Iterable[Node], held: set[int]) -> set[int]:
    """Return the parameters that an optimizer holds among nodes."""
    return held & {id(getattr(node, "variable", None)) for node in nodes}


def _is_linear(node: Node) -> bool:
    """Say whether a node adds up, or multiplies by what has no graph."""
    kind = kind_of(node)
    return kind in _LINEAR and (kind not in _PRODUCTS or len(_before(node)) == 1)


def _has_any(nodes: Iterable[Node], held: set[int]) -> bool:
    """Say whether a parameter that an optimizer holds is among nodes."""
    return any(id(getattr(node, "variable", None)) in held for node in nodes)


def _is_one_step(segment: list[Node]) -> bool:
    """Say whether what leads from one state to the next is one step in time."""
    calls = {node.metadata[CALL] for node in segment if CALL in node.metadata}
    steps = Counter[int]()
    for module, _, own in calls:
        steps[module] += own
    inside = [node for node in segment if CUT not in node.metadata]
    uses = Counter(n for node in inside for n in _before(node) if hasattr(n, "variable"))
    return max([*steps.values(), *uses.values()], default=0) <= 1


def _count_turns(met: dict[Node, list[Node]]) -> dict[Node, int]:
    """Return how many hand-overs lie before each cut, itself counted."""
    turns: dict[Node, int] = {}
    waiting = list(met)
    while waiting:
        cut = waiting[-1]
        open_ = [n for n in met[cut] if n not in turns]
        if open_:
            waiting += open_
        else:
            turns[waiting.pop()] = 1 + max((turns[n] for n in met[cut]), default=0)
    return turns


def _before(node: Node) -> list[Node]:
    """Return the nodes that a node was made from."""
    return [before for before, _ in node.next_functions if before is not None]


def _walk(roots: list[Node], at_cuts: bool = False) -> Iterator[Node]:
    """Yield the nodes of a graph; those behind cuts only if it does not stop at these."""
    seen, level = set(roots), list(roots)
    while level and len(seen) <= _MOST_NODES:
        node = level.pop()
        yield node
        if not (at_cuts and CUT in node.metadata):
            new = [before for before in _before(node) if before not in seen]
            seen.update(new)
            level += new
