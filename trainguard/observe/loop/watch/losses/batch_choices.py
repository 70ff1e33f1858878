"""Watches losses that take the best of several alternatives: whether each sample has its own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import Edge, affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.gradients.row_errors import (
    LOSSES,
    PICKS,
    find_axes,
    move,
    row_errors,
)
from trainguard.observe.loop.watch.losses.written_losses import Pass, output_at, pass_of
from trainguard.observe.loop.watch.models.mixing_probe import draws_samples
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = {8, 16, 32, 64}  # before, a model may not yet prefer any alternative
_MOST_NODES = 400  # between an alternative and the output of a module
_MOST = 24  # alternatives: the orders of four
_ROWS = 4  # samples of a batch, at least; targets of so many are compared
_NEAR = 1e-5  # of the largest number of a target: what rounding leaves
_BETTER = 1e-3  # of the errors of a sample, by which another alternative has to be smaller
_TWO = {"MaximumBackward": -1.0, "MinimumBackward": 1.0}
_ONE = {"AmaxBackward": -1.0, "AminBackward": 1.0, "MaxBackward": -1.0, "MinBackward": 1.0}
_BEST = _TWO | _ONE  # the sign of the loss with which the best is chosen
_ORDERS = ("FlipBackward", "IndexBackward")  # by which an output is put in another order
_SIZES = {"AbsBackward", "LinalgVectorNormBackward", "NormBackward", "PowBackward"}


@dataclass(slots=True)
class _Alternative:
    """What an alternative compares: targets (N, ...), with which numbers of a module's output."""

    kinds: list[str]
    picks: list[str]
    targets: list[torch.Tensor]
    rows: int


class BatchChoices(Watcher):
    """
    The Probe event "batch choice": the best of several alternatives, chosen for a batch as a whole.

    Alternatives: one output of a module, held against targets in different orders (label "order"),
    or different parts of it against the same targets (label "part"). measured: the least share of
    samples that another alternative is better for, of all looks; reference: looks; step: 1 if the
    rows are samples that a loader or places drew.
    """

    makes = ("Probe:batch choice",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._shares: dict[str, dict[int, float]] = {}  # by step, of what is chosen from
        self._drawn = False
        self._places: dict[str, list[int]] = {}  # at the latest look, by variable
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask which loader has served a batch."""
        self._batches = self.recorder.watcher(Batches)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for choices in what a loss is a sum of."""
        if self.recorder.age > max(_STEPS) and not self._shares:
            self.recorder.dismiss(self)
        if self.recorder.age not in _STEPS or loss.grad_fn is None or loss.numel() != 1:
            return
        with torch.no_grad():
            for part in affine_parts((loss.grad_fn, 0), ends=lambda node: kind_of(node) in _BEST):
                if part.factor * _BEST.get(kind_of(part.node), 0.0) > 0:
                    self._see(part.node)

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        for label, shares in self._shares.items():
            told = {"label": label, "step": int(self._drawn), "source": self._source}
            yield make_probe("batch choice", min(shares.values()), len(shares), **told)

    def _see(self, node: Node) -> None:
        """Look at what is chosen from, and at what the samples of the batch would have chosen."""
        found = _read_choice(node)
        if found is None:
            return
        label, errors = found
        errors = errors * _BEST[kind_of(node)]
        self.looked.add("batch choice")
        shares, now = self._shares.setdefault(label, {}), self.recorder.age
        shares[now] = min(shares.get(now, 1.0), _share_of_others(errors))
        self._drawn = self._is_drawn(len(errors)) or self._drawn
        self._source = self._source or caller()

    def _is_drawn(self, rows: int) -> bool:
        """Say whether rows are samples that a loader has drawn, or by new places drawn."""
        sampler = draws_samples(self._batches.served_by())
        before, self._places = self._places, dict(_find_places(rows))
        known = sampler is not None and sampler.batch_size == rows
        return known or any(before.get(name, each) != each for name, each in self._places.items())


def _find_places(rows: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the variables with places of so many rows among more of them, in no order."""
    for _, name, held in named_tensors():
        if held.dtype == torch.long and held.shape == (rows,) and held.is_cpu:
            places = held.tolist()
            if max(places) >= rows and places != sorted(places) and 2 * len(set(places)) > rows:
                yield name, places


def _share_of_others(errors: torch.Tensor) -> float:
    """Return the share of samples for which another alternative is better than the best of all."""
    chosen = errors[:, errors.mean(0).argmin()]
    spread = (errors.amax(1) - errors.amin(1)).mean()
    return float(((chosen - errors.amin(1)) > _BETTER * spread).float().mean())


def _read_choice(node: Node) -> tuple[str, torch.Tensor] | None:
    """Return what alternatives differ in, and their errors (N, K); None where it is none."""
    edges = list(_find_alternatives(node))
    if not edges:
        return _read_axis(node.next_functions[0]) if kind_of(node) in _ONE else None
    told = _compare(edges)
    if told is None:
        return None
    label, rows = told
    errors = [each for edge in edges if (each := row_errors(edge, rows)) is not None]
    known = len(errors) == len(edges) and all(each.shape == (rows,) for each in errors)
    return (label, torch.stack(errors, 1)) if known else None


def _find_alternatives(node: Node) -> Iterator[Edge]:
    """Yield the single numbers that one is chosen of; nothing where these are no single ones."""
    if kind_of(node) in _TWO:
        kept = saved(node, "self")
        if kept is None or kept.numel() != 1 or len(autograd_graph.live_inputs(node)) != len("ab"):
            return
        for edge in node.next_functions:
            inner = list(_find_alternatives(edge[0])) if kind_of(edge[0]) == kind_of(node) else []
            yield from inner or [edge]
    elif kind_of(node) in _ONE:
        stacked = _before_shapes(node.next_functions[0])[0]
        if stacked is not None and kind_of(stacked) in ("CatBackward", "StackBackward"):
            yield from stacked.next_functions if _has_all(stacked) else ()


def _has_all(stacked: Node) -> bool:
    """Say whether all that is stacked are single numbers that learn."""
    count = len(stacked.next_functions)
    own = torch.Size(autograd_graph.shape_made(stacked)).numel()
    return own == count == len(autograd_graph.live_inputs(stacked))


def _before_shapes(edge: Edge) -> Edge:
    """Return what made numbers, before their shape was changed."""
    while edge[0] is not None and kind_of(edge[0]) in autograd_graph.SAME:
        edge = edge[0].next_functions[0]
    return edge


def _read_axis(edge: Edge) -> tuple[str, torch.Tensor] | None:
    """Return the same of a number for each alternative, which was taken over the samples."""
    origin = next(iter(_passes_below(edge)), None) if edge[0] is not None else None
    found = _gather(edge, origin) if origin is not None else None
    errors = row_errors(edge, found.rows) if found is not None else None
    if found is None or errors is None or errors.dim() != len("NK"):
        return None
    count = errors.shape[1]
    same = all(_repeats(each, count) for each in found.targets)
    return ("part", errors) if same and found.targets and 1 < count <= _MOST else None


def _repeats(target: torch.Tensor, count: int) -> bool:
    """Say whether a target is the same for each of several alternatives, along an axis of it."""
    axes = [axis for axis in range(1, target.dim()) if target.shape[axis] == count]
    return any(_alike(target, target.narrow(axis, 0, 1).expand_as(target)) for axis in axes)


def _compare(edges: list[Edge]) -> tuple[str, int] | None:
    """Return what alternatives differ in, and for how many samples; None of any others."""
    if not 1 < len(edges) <= _MOST:
        return None
    shared = [set(_passes_below(edge)) for edge in edges[1:]]
    passes = _passes_below(edges[0])
    origin = next((each for each in passes if all(each in own for own in shared)), None)
    found = [_gather(edge, origin) for edge in edges] if origin is not None else []
    first = found[0] if found else None
    if first is None or not first.targets:
        return None
    others = [each for each in found[1:] if each is not None and _is_like(first, each)]
    if len(others) != len(found) - 1:
        return None
    same = all(sorted(first.picks) == sorted(other.picks) for other in others)
    if all(_hold_same(first, other) for other in others):
        turned = same or any(pick.startswith(_ORDERS) for pick in first.picks + others[0].picks)
        differ = all(first.picks != other.picks for other in others)
        return ("order" if turned else "part", first.rows) if differ else None
    ordered = same and all(_hold_sorted(first, other) for other in others)
    return ("order", first.rows) if ordered else None


def _is_like(first: _Alternative, other: _Alternative) -> bool:
    """Say whether two alternatives do the same with numbers of the same shapes."""
    shapes = [[target.shape for target in each.targets] for each in (first, other)]
    return (other.kinds, other.rows) == (first.kinds, first.rows) and shapes[0] == shapes[1]


def _hold_same(first: _Alternative, other: _Alternative) -> bool:
    """Say whether two alternatives have the same targets."""
    return all(map(_alike, first.targets, other.targets))


def _hold_sorted(first: _Alternative, other: _Alternative) -> bool:
    """Say whether two alternatives have the same numbers in each row of their targets."""
    both = [torch.cat([t.flatten(1) for t in each.targets], 1) for each in (first, other)]
    return _alike(both[0].sort(1).values, both[1].sort(1).values)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors have the same numbers, but for what rounding leaves."""
    near = _NEAR * max(1.0, float(one.abs().max()))
    return one.shape == other.shape and bool(((one - other).abs() <= near).all())


def _passes_below(edge: Edge) -> list[Pass]:
    """Return the passes that returned what is below an alternative, the nearest first."""
    below = autograd_graph.below(edge[0], _MOST_NODES)
    return list(dict.fromkeys(made for node in below if (made := pass_of(node)) is not None))


def _gather(edge: Edge, origin: Pass) -> _Alternative | None:
    """Return what an alternative does with an output of a pass; None where it is not known."""
    found = _Alternative([], [], [], 0)
    waiting, seen = [edge], {edge}
    while waiting:
        here = waiting.pop(0)
        if pass_of(here[0]) == origin:
            shape = autograd_graph.shape_made(here[0])
            found.rows = shape[0] if shape else 0
            found.picks.append(f"output {here[1]}")
            continue
        if len(seen) > _MOST_NODES or hasattr(here[0], "variable") or not _take(*here, found):
            return None
        new = [each for each in here[0].next_functions if each[0] is not None and each not in seen]
        seen.update(new)
        waiting += new
    known = found.rows >= _ROWS and all(t.shape[:1] == (found.rows,) for t in found.targets)
    found.targets = [target[:_ROWS] for target in found.targets]
    return found if known else None


def _take(node: Node, place: int, found: _Alternative) -> bool:
    """Take in an operation; say whether it leaves the samples where they are."""
    kind = kind_of(node)
    if kind in PICKS:
        axes = list(find_axes(node))
        places = [saved(node, name) for name in ("index", "start", "end", "indices")]
        found.picks.append(f"{kind} {axes} {places} {place}")
        return 0 not in axes
    if kind not in autograd_graph.SAME:
        found.kinds.append(kind)
    found.targets += [t for t in _targets_at(node) if t.dim() > 1]
    return True


def _targets_at(node: Node) -> Iterator[torch.Tensor]:
    """Yield what does not learn that an operation holds something against."""
    if kind_of(node) in LOSSES:
        sides = saved(node, "self"), saved(node, "target")
        yield from (t.detach() for t in sides if t is not None and not t.requires_grad)
    elif kind_of(node) in _SIZES or autograd_graph.is_square(node):
        apart, between = saved(node, "self"), _before_shapes(node.next_functions[0])[0]
        target = _find_target(between, apart) if apart is not None and between is not None else None
        yield from [] if target is None else [target]
    else:
        yield from (t for t in autograd_graph.constants_of(node) if t.dim() > 1)


def _find_target(between: Node, apart: torch.Tensor) -> torch.Tensor | None:
    """Return what something learned is that far apart from, by what a pass has returned."""
    live = [place for place, (before, _) in enumerate(between.next_functions) if before is not None]
    if kind_of(between) != "SubBackward" or len(live) != 1 or saved(between, "alpha") != 1:
        return None
    output = _picked_output(between.next_functions[live[0]])
    shape = autograd_graph.shape_made(between)
    if output is None or torch.Size(shape).numel() != apart.numel():
        return None
    apart = apart.detach().reshape(shape)
    return output - apart if live[0] == 0 else output + apart


def _picked_output(edge: Edge) -> torch.Tensor | None:
    """Return numbers that a pass has returned, as they were picked and put in another shape."""
    node, place = edge
    if node is None or pass_of(node) is not None:
        return output_at(node, place) if node is not None else None
    if kind_of(node) not in autograd_graph.SAME | PICKS:
        return None
    each = _picked_output(node.next_functions[0])
    return None if each is None else move(node, each, place)
