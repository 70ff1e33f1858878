"""Watches recurrent states that come back: whether they go on with other samples."""

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import data

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.models.mixing_probe import RANDOM, draws_samples, find_order
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_STEPS = 16  # the first ones, in each of which it is looked
_LARGEST = 1 << 18  # elements of a state
_MOST, _MOST_NODES = 16, 20000
# What recurrent layers keep of the state that they begin with, by the operations that they make.
_BEGIN = {
    "AddmmBackward": ("mat1",),
    "CudnnRnnBackward": ("hx",),
    "MiopenRnnBackward": ("hx",),
    "MkldnnRnnLayerBackward": ("hx_",),
}
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class CarriedStates(Watcher):
    """
    The Probe event "carried": passes that begin with the state that the pass before has ended with.

    Only of training passes with recurrent layers, each with a batch that a loader draws at random,
    or whose samples it draws, or a script from a table: what comes next has nothing to do with what
    came before. What a layer
    begins with stands in the graph of the loss; what it has ended with is returned, or kept by a
    module. measured: how many passes, reference: of how many that begin with anything but zeros.
    """

    makes = ("Probe:carried",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._widths: weakref.WeakKeyDictionary[nn.Module, set[int]] = weakref.WeakKeyDictionary()
        self._drawn = False  # whether the latest batch has come since the latest pass
        self._order: torch.Tensor | None = None  # of the latest rows, in a table of the script's
        self._before: list[torch.Tensor] = []  # the states that the pass before has ended with
        self._ends: list[torch.Tensor] = []
        self._given = self._carried = 0
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Be told of what loaders hand out."""
        iterator = getattr(data.dataloader, "_BaseDataLoaderIter", None)
        patches.replace(iterator, "__next__", tell_after(self._see_batch))

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the states that a pass ends with."""
        if self.recorder.age >= _STEPS or not forward.gradients:
            return
        widths = self._find_widths(module)
        if widths:
            drawn, self._drawn = self._drawn or self._draws_others(), False
            self._before = self._ends if drawn else []
            held = (tensors_in(list(vars(each).values()), 2) for each in module.modules())
            own = (t for some in held for t in some if not isinstance(t, nn.Parameter))
            kept = [t for t in (*tensors_in(output), *own) if _is_state(t, widths)]
            self._ends = [t.detach().clone() for t in kept[:_MOST]]

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare what a pass began with to what the pass before has ended with."""
        before, self._before = self._before, []
        if not before or loss.grad_fn is None:
            return
        begun = list(_find_beginnings(loss, {end.shape[-1] for end in before}))
        others = [state.any() for state in begun]
        same = _compare(begun, before)
        stays = _compare(begun, self._ends)  # as a state does that is handed through
        counts = len(others), len(same)
        told = partial(self._take, caller(), counts)
        self.recorder.reads.ask(self, [*others, *same, *stays], told)

    def finish(self) -> Iterable[Event]:
        """Return how many passes went on with the state of others."""
        if self._given:
            self.looked.add("carried")
        if self._carried:
            yield make_probe("carried", self._carried, self._given, source=self._source)

    @shielded
    def _see_batch(self, batch: Any, iterator: Any) -> None:
        """Note that a batch came, and whether its samples were drawn at random."""
        # Without a batch size the data has whole batches, such as stretches of series.
        sampler = getattr(iterator, "_index_sampler", None)
        self._drawn = isinstance(sampler, RANDOM) or draws_samples(iterator) is not None

    def _draws_others(self) -> bool:
        """Say whether a script has drawn other rows than before, and not the next ones of each."""
        given = [tensor for tensor in self.recorder.given if has_rows(tensor)]
        before, self._order = self._order, find_order(given) if given else None
        if before is None or self._order is None or len(before) != len(self._order):
            return False
        moved = self._order - before
        return bool((moved != moved[0]).any())

    def _find_widths(self, module: nn.Module) -> set[int]:
        """Return how wide the states of a module's recurrent layers are."""
        if module not in self._widths:
            layers = [m for m in module.modules() if isinstance(m, _RECURRENT)]
            projected = {int(getattr(layer, "proj_size", 0)) for layer in layers} - {0}
            self._widths[module] = {int(layer.hidden_size) for layer in layers} | projected
        return self._widths[module]

    def _take(self, source: str, counts: tuple[int, int], flags: list[torch.Tensor]) -> None:
        """Count a pass that has begun with something."""
        others, same = counts
        self._given += any(map(bool, flags[:others]))
        if any(map(bool, flags[others : others + same])) and not any(
            map(bool, flags[others + same :])
        ):
            self._carried += 1
            self._source = self._source or source


def _find_beginnings(loss: torch.Tensor, widths: set[int]) -> Iterator[torch.Tensor]:
    """Yield the constants of such widths that recurrent layers begin with."""
    for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
        kind = autograd_graph.kind_of(node)
        for name in _BEGIN.get(kind, ()):
            state = autograd_graph.saved(node, name)
            learned = kind == "AddmmBackward" and node.next_functions[1][0] is not None
            if isinstance(state, torch.Tensor) and not learned and _is_state(state, widths):
                yield state.detach()


def _compare(begun: list[torch.Tensor], ends: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each pair of states (layers, N, H) on one device whether a layer is the same."""
    pairs = [
        (one.reshape(-1, *one.shape[-2:]), end.reshape(-1, *end.shape[-2:]))
        for one in begun
        for end in ends
        if one.device == end.device and one.shape[-2:] == end.shape[-2:]
    ]
    return [
        ((one == end).flatten(1).all(1) & end.flatten(1).any(1)).any()
        for one, end in pairs
        if len(one) in (1, len(end))
    ]


def _is_state(tensor: torch.Tensor, widths: set[int]) -> bool:
    """Say whether a tensor may be the state of a recurrent layer: (layers, N, H) or (N, H)."""
    numbers = tensor.is_floating_point() and tensor.layout == torch.strided
    sized = tensor.dim() in (2, 3) and 1 < tensor.numel() <= _LARGEST
    return numbers and sized and tensor.shape[-1] in widths
