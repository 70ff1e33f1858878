"""Watches recurrent states that come back: whether they go on with other samples."""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import data

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.mixing_probe import draws_samples
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_STEPS = 16  # the first ones, in each of which it is looked
_LARGEST = 1 << 18  # elements of a state
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class CarriedStates(Watcher):
    """
    The Probe event "carried": passes that begin with the state that the pass before has ended with.

    Only of training passes with recurrent layers, each with a batch whose samples a loader draws at
    random: what comes next has nothing to do with what came before. measured: how many, reference:
    of how many that were given a state.
    """

    makes = ("Probe:carried",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._widths: weakref.WeakKeyDictionary[nn.Module, set[int]] = weakref.WeakKeyDictionary()
        self._drawn = False  # whether the latest batch has come since the latest pass
        self._ends: list[torch.Tensor] = []  # states that the latest pass has returned
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
        """Compare the state that a pass begins with to that which the pass before has returned."""
        if self.recorder.age >= _STEPS or not forward.gradients:
            return
        widths = self._find_widths(module)
        if not widths:
            return
        given = [t.detach() for t in tensors_in(inputs) if _is_state(t, widths)]
        ends = [t.detach().clone() for t in tensors_in(output) if _is_state(t, widths)]
        drawn, self._drawn = self._drawn, False
        if given and drawn:
            same = _compare(given, self._ends)
            stays = _compare(given, ends)  # as a state does that is learned, and handed through
            told = partial(self._take, caller(), len(same))
            self.recorder.reads.ask(self, [*same, *stays], told)
        self._ends = ends

    def finish(self) -> Iterable[Event]:
        """Return how many passes went on with the state of others."""
        if self._given:
            self.looked.add("carried")
        if self._carried:
            yield make_probe("carried", self._carried, self._given, source=self._source)

    @shielded
    def _see_batch(self, batch: Any, iterator: Any) -> None:
        """Note that a batch came, and whether its samples were drawn at random."""
        self._drawn = draws_samples(iterator) is not None

    def _find_widths(self, module: nn.Module) -> set[int]:
        """Return how wide the states of a module's recurrent layers are."""
        if module not in self._widths:
            layers = [m for m in module.modules() if isinstance(m, _RECURRENT)]
            widths = {int(layer.hidden_size) for layer in layers}
            self._widths[module] = widths | {
                int(getattr(layer, "proj_size", 0)) or int(layer.hidden_size) for layer in layers
            }
        return self._widths[module]

    def _take(self, source: str, count: int, flags: list[torch.Tensor]) -> None:
        """Count a pass that was given a state."""
        self._given += 1
        if any(map(bool, flags[:count])) and not any(map(bool, flags[count:])):
            self._carried += 1
            self._source = self._source or source


def _compare(given: list[torch.Tensor], ends: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each pair of states of one shape and place whether they are the same."""
    pairs = [(one, end) for one in given for end in ends if one.shape == end.shape]
    return [(one == end).all() for one, end in pairs if one.device == end.device]


def _is_state(tensor: torch.Tensor, widths: set[int]) -> bool:
    """Say whether a tensor may be the state of a recurrent layer: (layers, N, H) or (N, H)."""
    numbers = tensor.is_floating_point() and tensor.layout == torch.strided
    sized = tensor.dim() in (2, 3) and 1 < tensor.numel() <= _LARGEST
    return numbers and sized and tensor.shape[-1] in widths
