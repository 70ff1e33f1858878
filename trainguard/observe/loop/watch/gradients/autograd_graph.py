"""
The graph that autograd keeps: what made a tensor, and which loss functions a loss is made of.

Only names, edges and saved constants are read. A mark put on a node lives and dies with the node,
so that no graph is kept alive by somebody who wants to recognise it later.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch

Node = Any  # of the graph; torch has no public name that fits all its versions
_MARK = "trainguard"
_DIGITS = "0123456789"
_LOOKED_THROUGH = 3
_EXACT = 1e-6  # of a mean: what dividing by a count rounds off
_CONSTANTS = 32  # operations between a loss function and what is handed to backward

# What changes the shape, the dtype or the place of numbers, and not the numbers.
SAME = {
    "AliasBackward",
    "CloneBackward",
    "FlattenBackward",
    "PermuteBackward",
    "ReshapeAliasBackward",
    "SqueezeBackward",
    "ToCopyBackward",
    "TransposeBackward",
    "UnsafeViewBackward",
    "UnsqueezeBackward",
    "ViewBackward",
}
VIEWS = {"ReshapeAliasBackward", "UnsafeViewBackward", "ViewBackward"}  # in the order of memory
_COPIES = {"CloneBackward", "LogSoftmaxBackward", "ToCopyBackward"}  # number for number
PARTS = {"SelectBackward", "SliceBackward"}  # some of the same numbers


def name_of(node: Node) -> str:
    """Return a node's name as autograd says it: "SoftmaxBackward0"."""
    return str(node.name()).rpartition("::")[2]


def kind_of(node: Node) -> str:
    """Return a node's name without the number of its variant: "SumBackward"."""
    return name_of(node).rstrip(_DIGITS)


def signed(kept: Any) -> int:
    """Return a saved whole number, which torch keeps without its sign."""
    return int(kept) - 2**64 if int(kept) >= 2**63 else int(kept)


def saved(node: Node, name: str) -> Any:
    """
    Return what an operation keeps for its way back under a name; None where that is not at hand.

    It is not where it was written since, or where its graph has been used up.
    What hooks have packed is left alone: checkpoints would compute it again, which draws random
    numbers and moves the statistics of batches.
    """
    packed = getattr(node, f"_raw_saved_{name}", None)
    each = packed if isinstance(packed, tuple) else (packed,)
    if any(getattr(one, "unpack_hook", None) is not None for one in each):
        return None
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def given_to(node: Node, names: Mapping[str, str]) -> torch.Tensor | None:
    """Return the input that a node keeps and no other made; names: of those, by kind of node."""
    name = names.get(kind_of(node))
    kept = saved(node, name) if name else None
    return kept if isinstance(kept, torch.Tensor) and not kept.requires_grad else None


def constants_of(node: Node) -> Iterator[torch.Tensor]:
    """Yield the tensors without a gradient that a product multiplies something learned by."""
    for name in ("self", "other") if kind_of(node) == "MulBackward" else ():
        kept = saved(node, name)
        if isinstance(kept, torch.Tensor) and not kept.requires_grad:
            yield kept


def is_square(node: Node) -> bool:
    """Say whether a node multiplies something by itself; a number that it multiplies by is none."""
    sides = node.next_functions
    return kind_of(node) == "MulBackward" and len(sides) == 2 and sides[0] == sides[1]


def is_mask(weights: torch.Tensor) -> bool:
    """Say of weights on a CPU whether they leave elements out, and the others as they are."""
    return weights.is_cpu and bool(((weights == 0) | (weights == 1)).all())


def live_inputs(node: Node) -> list[Node]:
    """Return what an operation takes from others that learn."""
    return [before for before, _ in node.next_functions if before is not None]


def leaves_of(nodes: Iterable[Node]) -> set[int]:
    """Return the identities of the tensors that gradients arrive at, such as parameters."""
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}


def find_tables(nodes: Iterable[Node]) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield the tables of tokens that embeddings read, with the embedding and its padding."""
    for node in nodes:
        if kind_of(node) == "EmbeddingBackward":
            rows = saved(node, "indices")
            weight = getattr(node.next_functions[0][0], "variable", None)
            if weight is not None and rows is not None and rows.is_cpu and rows.dim() == 2:
                yield weight, rows, signed(node._saved_padding_idx)  # noqa: SLF001


def producer(tensor: torch.Tensor) -> str:
    """Name what made a tensor, whatever its shape or dtype was changed to since."""
    node: Node = tensor.grad_fn
    return "" if node is None else name_of(maker_of(node))


def maker_of(node: Node) -> Node:
    """Return the node that made numbers, whatever their shape or dtype was changed to since."""
    for _ in range(_LOOKED_THROUGH):
        before = node.next_functions[0][0] if node.next_functions else None
        if before is None or kind_of(node) not in SAME | PARTS:
            break
        node = before
    return node


def activation(tensor: torch.Tensor) -> str:
    """Name the function that made a tensor, but for constants that were added or multiplied."""
    node: Node = tensor.grad_fn
    for _ in range(_LOOKED_THROUGH if node is not None else 0):
        live = [before for before, _ in node.next_functions if before is not None]
        moved = kind_of(node) in ("AddBackward", "MulBackward", "DivBackward") and len(live) == 1
        if not moved and (kind_of(node) not in SAME | PARTS or not live):
            break
        node = live[0]
    return name_of(node) if node is not None else ""


def find_readers(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return the nodes that each node's numbers go to."""
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for before, _ in node.next_functions:
            if before is not None:
                readers.setdefault(before, []).append(node)
    return readers


def shape_before_view(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape that a tensor had before it was viewed in its own; nothing if it was not."""
    node: Node = tensor.grad_fn
    while node is not None and kind_of(node) in _COPIES:
        node = node.next_functions[0][0]
    return sizes(node) if node is not None and kind_of(node) in VIEWS else ()


def mark(node: Node, token: object) -> None:
    """Leave a token at a node, where there is one."""
    if node is not None:
        node.metadata[_MARK] = token


def token_at(node: Node) -> Any:
    """Return the token that was left at a node, or None."""
    return node.metadata.get(_MARK)


def multiple(loss: torch.Tensor) -> tuple[Any, torch.Tensor | float] | None:
    """
    Return the one marked value that a loss is a constant multiple of, and the multiple.

    Only the constants are followed: where a second part with a gradient comes in there is no such
    value. A multiple that lives on an accelerator stays there.
    """
    for node, factor in multiples(loss.grad_fn):
        if (token := token_at(node)) is not None:
            return token, factor
    return None


def find_reduction(loss: torch.Tensor) -> tuple[Node, float] | None:
    """Return the mean or sum of several numbers that a loss is a constant multiple of; or None."""
    for node, factor in multiples(loss.grad_fn):
        if token_at(node) is not None or not isinstance(factor, float):
            return None
        if kind_of(node) in ("MeanBackward", "SumBackward") and elements(node) > 1:
            return node, factor
    return None


def multiples(node: Node) -> Iterator[tuple[Node, Any]]:
    """Yield the nodes whose values a node is a constant multiple of, each with the multiple."""
    factor: Any = 1.0
    for _ in range(_CONSTANTS):
        if node is None:
            return
        yield node, factor
        live = [place for place, (before, _) in enumerate(node.next_functions) if before]
        by = constant_at(node, live[0]) if len(live) == 1 else None
        if by is None:
            return
        node, factor = node.next_functions[live[0]][0], factor * by


def last_factor(loss: torch.Tensor) -> float:
    """Return the product of the constants that a loss was multiplied by last."""
    node, factor = loss.grad_fn, 1.0
    for _ in range(_CONSTANTS):
        before = node.next_functions if node is not None else ()
        live = [place for place, (made, _) in enumerate(before) if made]
        by = constant_at(node, live[0]) if node is not None and len(live) == 1 else None
        if by is None:
            break
        node, factor = before[live[0]][0], factor * float(by)
    return factor


def mean_of_several(loss: torch.Tensor) -> Any:
    """Return the marked value of several numbers that a loss is the plain mean of, or None."""
    node, factor = loss.grad_fn, 1.0
    for _ in range(_CONSTANTS):
        if node is None or token_at(node) is not None:
            break
        live = [place for place, (before, _) in enumerate(node.next_functions) if before]
        by = _times_mean(node, live[0]) if len(live) == 1 else None
        if by is None:
            return None
        node, factor = node.next_functions[live[0]][0], factor * by
    return token_at(node) if node is not None and abs(factor - 1) <= _EXACT else None


def _times_mean(node: Node, place: int) -> float | None:
    """Return by what an operation multiplies the mean of its input at a place."""
    kind, count = kind_of(node), elements(node)
    if kind == "MeanBackward" and count:
        return 1.0
    if kind == "SumBackward" and count:
        return count / max(1, torch.Size(shape_made(node)).numel())
    by = constant_at(node, place)
    return by if isinstance(by, float) else None


def factor_of(node: Node) -> float:
    """Return the number that a product or quotient multiplies by; 0 where there is no such one."""
    live = [place for place, (before, _) in enumerate(node.next_functions) if before]
    scales = kind_of(node) in ("MulBackward", "DivBackward") and len(live) == 1
    by = constant_at(node, live[0]) if scales else None
    return by if isinstance(by, float) else 0.0


def constant_at(node: Node, place: int) -> Any:
    """Return what an operation multiplies its input at a place by; None where it does more."""
    kind = kind_of(node)
    if kind in SAME:
        return 1.0
    if kind in ("MeanBackward", "SumBackward"):
        return 1.0 if elements(node) == 1 else None
    if kind == "NegBackward":
        return -1.0
    if kind in ("AddBackward", "SubBackward"):
        sign = -1.0 if kind == "SubBackward" else 1.0
        return sign * node._saved_alpha if place else 1.0  # noqa: SLF001 torch names it so
    if kind == "RsubBackward":
        return 1.0 if place else -node._saved_alpha  # noqa: SLF001
    if kind == "MulBackward":
        return _number(saved(node, "self" if place else "other"))
    if kind == "DivBackward" and not place:
        divisor = _number(saved(node, "other"))
        return (
            None if divisor is None or (isinstance(divisor, float) and not divisor) else 1 / divisor
        )
    return None


def _number(kept: torch.Tensor | float | None) -> torch.Tensor | float | None:
    """Return a saved constant as a number, or as it is where it lives on an accelerator."""
    if isinstance(kept, int | float):
        return float(kept)
    if kept is None or kept.numel() != 1 or kept.is_complex():
        return None
    return float(kept) if kept.device.type == "cpu" else kept.detach().reshape(())


def sizes(node: Node) -> tuple[int, ...]:
    """Return the shape of what a reduction was given, or nothing where it is not known."""
    return tuple(int(size) for size in getattr(node, "_saved_self_sym_sizes", ()))


def elements(node: Node) -> int:
    """Return how many elements a reduction was given, 0 where that is not known."""
    known = getattr(node, "_saved_self_sym_sizes", None)
    return torch.Size(sizes(node)).numel() if known is not None else 0


def shape_after(loss: torch.Tensor, node: Node, output: int) -> tuple[int, ...]:
    """Return the shape of the output of a node in the graph of a loss."""
    if hasattr(node, "variable"):
        return tuple(node.variable.shape)
    known = getattr(node, "_input_metadata", ())
    if output < len(known):
        return tuple(int(size) for size in known[output].shape)
    # torch 2.4 does not tell it, but the gradient that arrives there has the same shape.
    edge = torch.autograd.graph.GradientEdge(node, output)
    return tuple(torch.autograd.grad(loss, [edge], retain_graph=True)[0].shape)


def shape_made(node: Node) -> tuple[int, ...]:
    """Return the shape of what a node made; nothing where this torch does not tell."""
    known = getattr(node, "_input_metadata", ())
    return tuple(int(size) for size in known[0].shape) if known else ()


def without_batch(shape: tuple[int, ...]) -> str:
    """Return a shape whose first size may change from step to step."""
    return f"(N,{','.join(str(size) for size in shape[1:])})"


def below(
    root: Node, most: int, stop_at_marks: bool = False, ends: Container[Node] = ()
) -> Iterator[Node]:
    """
    Yield the nodes of a graph from its root, the nearest first, and `most` of them at most.

    Nothing below a mark, where that is asked for, nor below what is one of the ends.
    """
    seen = {root}
    level = [root]
    while level and len(seen) <= most:
        following = []
        for node in level:
            yield node
            if node in ends or (stop_at_marks and token_at(node) is not None):
                continue
            for before, _ in node.next_functions:
                if before is not None and before not in seen:
                    seen.add(before)
                    following.append(before)
        level = following
