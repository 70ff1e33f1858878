"""Watches attention by hand: whether its weights sum to one along the axis that they weigh."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from math import prod
from typing import Any, NamedTuple

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, signed
from trainguard.observe.loop.watch.models.attention_scales import (
    SOFTMAX,
    ScaledScores,
    find_scores,
)
from trainguard.observe.loop.watch.models.function_lines import find_function_line
from trainguard.observe.loop.watch.models.mixture_axes import (
    find_added_probabilities,
    find_mixture_axes,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, foreign

_STEPS = {0, 1, 2, 4, 8}  # that are looked at
_MOST_NODES = 20000
_THROUGH = 12  # nodes between a softmax and a product
_LINE = "trainguard line"
_SAYS = re.compile(r"softmax\(")
_SAYS_ROOT = re.compile(r"sqrt|\*\*\s*\(?-?\s*0?\.5|pow\(.*0?\.5")
# What keeps each weight, or each score, in its place.
_KEPT = {"CloneBackward", "NativeDropoutBackward", "ToCopyBackward", "AliasBackward"}
_MASKED = {"MaskedFillBackward", "AddBackward", "WhereBackward"}
_POINTWISE = {"MulBackward", "DivBackward", "SubBackward", "ClampBackward", "TanhBackward"}

Shape = tuple[int, ...]


class _Use(NamedTuple):
    """A softmax that a product sums: whether along its own axis, and whether that is sure."""

    label: str
    right: bool
    sure: bool
    source: str


class AttentionAxes(Watcher):
    """
    The Probe events "attention axis" and "attention axis, perhaps".

    Products of attention that sum over another axis than the one along which their weights were
    made to sum to one. It is sure where queries and keys are equally many, or some are masked.

    And "attention scale": steps with scores that are multiplied by the root of the width of a head,
    of those with scores whose factor is known; label: the width. "attention scale, perhaps" where
    that root is a whole number, and the user's modules speak of no root.

    And "mixture axis": steps with a logsumexp over another axis than the one along which the
    logarithms of weights below it were normalised; label: both, as counted from the last one.
    "mixture probabilities": steps with one that is given weights in place of their logarithms.
    """

    makes = (
        "Probe:attention axis",
        "Probe:attention axis, perhaps",
        "Probe:attention scale",
        "Probe:attention scale, perhaps",
        "Probe:mixture axis",
        "Probe:mixture probabilities",
    )
    relies_on = ("MadeLines",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[str, tuple[_Use, int]] = {}
        self._steps = self._scaled = self._multiplied = 0
        self._width, self._sure, self._line = 0, True, ""
        self._mixtures = self._crossed = 0
        self._added, self._weights = 0, ""  # steps with weights that are no logarithms; their line
        self._axes = self._mixed = ""  # of a mixture, and its log_softmax or the backward

    def install(self, patches: Patches) -> None:
        """Leave the line of a softmax at its node."""
        patches.replace(torch.Tensor, "softmax", self._marking)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the products that a loss is made of."""
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES:
            return
        with suppress(RuntimeError):  # what was changed since cannot be read
            self._see_scales(list(find_scores(nodes)))
        self._see_mixtures(list(find_mixture_axes(nodes)), list(find_added_probabilities(nodes)))
        uses = []
        with suppress(RuntimeError):
            uses = [use for node in nodes if kind_of(node) == "BmmBackward" for use in _uses(node)]
        if uses:
            self.looked.add("attention axis")
            self._steps += 1
        for use in {use.label: use for use in uses if not use.right}.values():
            known, times = self._found.get(use.label, (use, 0))
            self._found[use.label] = known, times + 1

    def _see_mixtures(self, axes: list[tuple[int, int]], added: list[Node]) -> None:
        """Count a step with mixtures whose weights are summed along another axis than their own."""
        crossed = next((each for each in axes if each[0] != each[1]), None)
        self._mixtures += bool(axes or added)
        self._added += bool(added)
        if added and not self._weights:
            self._weights = added[0].metadata.get(_LINE) or find_function_line(
                self.recorder, "softmax"
            )
        self._crossed += crossed is not None
        if crossed is not None and not self._axes:
            self._axes = f"{crossed[0]} and {crossed[1]}"
            self._mixed = find_function_line(self.recorder, "log_softmax") or caller()

    def _see_scales(self, scores: list[ScaledScores]) -> None:
        """Count a step in which scores are multiplied that should have been divided."""
        self._scaled += bool(scores)
        wrong = next((each for each in scores if each.is_multiplied), None)
        if wrong is None:
            return
        if not self._multiplied:  # its modules may be gone at the end
            self._width = wrong.width
            self._sure = not wrong.is_plain or bool(self._search_lines(_SAYS_ROOT))
            self._line = wrong.softmax.metadata.get(_LINE) or self._search_source()
        self._multiplied += 1

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"attention scale"} if self._scaled else set()
        self.looked |= {"mixture axis"} if self._mixtures else set()
        if self._crossed:
            told = {"label": self._axes, "source": self._mixed}
            yield make_probe("mixture axis", self._crossed, self._mixtures, **told)
        if self._added:
            told = {"source": self._weights}
            yield make_probe("mixture probabilities", self._added, self._mixtures, **told)
        if self._multiplied:
            name = "attention scale" if self._sure else "attention scale, perhaps"
            told = {"label": str(self._width), "source": self._line}
            yield make_probe(name, self._multiplied, self._scaled, **told)
        for use, times in self._found.values():
            yield Probe(
                probe="attention axis" if use.sure else "attention axis, perhaps",
                measured=float(times),
                reference=float(self._steps),
                label=use.label,
                source=use.source or self._search_source(),
            )

    def _marking(self, softmax: Callable[..., Any]) -> Callable[..., Any]:
        """Return a softmax that leaves at its node by which line it was called."""

        @wraps(softmax)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Return the softmax."""
            made = softmax(*args, **kwargs)
            if torch.compiler.is_compiling() or self.recorder.age not in _STEPS:
                return made
            if self.recorder.is_looking() and made.grad_fn is not None:
                with suppress(Exception):  # a subclass may have nodes of its own
                    made.grad_fn.metadata.setdefault(_LINE, caller(2))
            return made

        return wrapper

    def _search_source(self) -> str:
        """Return the one line of the user's modules that calls a softmax; nothing of several."""
        found = self._search_lines(_SAYS)
        return found.pop() if len(found) == 1 else ""

    def _search_lines(self, says: re.Pattern[str]) -> set[str]:
        """Return the lines of the user's modules that say something."""
        kinds = {type(part) for root in self.recorder.names.roots() for part in root.modules()}
        return {line for kind in kinds for line in _lines_of(kind, says)}


def _lines_of(kind: type, says: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of a class of the user's that say something."""
    with suppress(Exception):  # there may be no source
        file = inspect.getsourcefile(kind) or ""
        lines, first = inspect.getsourcelines(kind)
        for number, line in enumerate(lines) if foreign(file) else ():
            if says.search(line.partition("#")[0]):
                yield f"{file}:{first + number}"


def _uses(product: Node) -> Iterator[_Use]:
    """Yield the attention whose weights a product of matrices sums, if one of the two is such."""
    operands = [before for before, _ in product.next_functions[:2]]
    paths = [_path_to_softmax(node) for node in operands]
    for place, path in enumerate(paths):
        if not path or paths[1 - place]:  # of two distributions neither is what is weighed
            continue
        softmax = path[-1]
        masked = _is_of_products(softmax)
        weights = autograd_graph.saved(softmax, "result")
        made = () if weights is None else tuple(weights.shape)
        if masked is None or len(made) < 3:
            continue
        axis = signed(softmax._saved_dim) % len(made)  # noqa: SLF001 torch names it so
        now = _follow(axis, made, path[-2::-1])
        if now is not None and made[axis] > 1:
            label = f"softmax over axis {axis} of {autograd_graph.without_batch(made)}"
            sure = masked or made[-1] == made[-2]
            yield _Use(label, now == 2 - place, sure, softmax.metadata.get(_LINE, ""))


def _path_to_softmax(node: Node) -> list[Node]:
    """Return the nodes from an operand down to a softmax, whose weights keep their values."""
    path: list[Node] = []
    for _ in range(_THROUGH):
        if node is None:
            return []
        path.append(node)
        kind = kind_of(node)
        if kind in SOFTMAX:
            return path
        if kind not in autograd_graph.SAME | _KEPT | {"ExpandBackward", "MulBackward"}:
            return []
        live = [before for before, _ in node.next_functions if before is not None]
        if len(live) != 1:  # a product with a gate
            return []
        node = live[0]
    return []


def _is_of_products(softmax: Node) -> bool | None:
    """Say whether scores of queries and keys were masked; None where they are no such scores."""
    node, masked = softmax.next_functions[0][0], False
    for _ in range(_THROUGH):
        if node is None:
            return None
        kind = kind_of(node)
        if kind in ("BmmBackward", "BaddbmmBackward"):
            return masked if all(before is not None for before, _ in node.next_functions) else None
        if kind not in autograd_graph.SAME | _MASKED | _POINTWISE | {"ExpandBackward"}:
            return None
        masked |= kind in ("MaskedFillBackward", "WhereBackward")
        live = [before for before, _ in node.next_functions if before is not None]
        if len(live) != 1:  # scores with something that is learned: go where the product is
            live = [n for n in live if kind_of(n) in autograd_graph.SAME | {"BmmBackward"}][:1]
        node = live[0] if live else None
    return None


def _follow(axis: int, shape: Shape, path: list[Node]) -> int | None:
    """Return at which place an axis stands after some nodes; None where that is not known."""
    for node in path:
        kind = kind_of(node)
        if kind == "TransposeBackward":
            pair = [signed(d) % len(shape) for d in (node._saved_dim0, node._saved_dim1)]  # noqa: SLF001
            axis = pair[1 - pair.index(axis)] if axis in pair else axis
            swapped = list(shape)
            swapped[pair[0]], swapped[pair[1]] = shape[pair[1]], shape[pair[0]]
            shape = tuple(swapped)
        elif kind == "PermuteBackward":
            order = [signed(d) % len(shape) for d in node._saved_dims]  # noqa: SLF001
            axis, shape = order.index(axis), tuple(shape[place] for place in order)
        elif kind not in _KEPT | {"MulBackward"}:
            after = autograd_graph.shape_made(node)
            if not after or prod(after) != prod(shape):
                return None
            held = _holder(axis, shape, after)
            if held and after[held] != shape[axis]:
                return None
            axis, shape = held, after
    return axis if len(shape) == 3 else None


def _holder(axis: int, before: Shape, after: Shape) -> int:
    """Return the axis of a view that holds an axis of what is viewed, or the outermost of it."""
    inner = prod(before[axis + 1 :])
    return max((place for place in range(len(after)) if prod(after[place:]) > inner), default=0)
