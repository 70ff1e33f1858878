"""Watches whole epochs, whatever serves them: the same inputs and targets, in other pairs."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.samples.input_pairs import InputPairs
from trainguard.observe.loop.watch.samples.recurring_pairs import RecurringPairs
from trainguard.observe.loop.watch.samples.row_order import tells_an_order
from trainguard.observe.loop.watch.samples.target_epochs import LEAST, NOISE, Epochs, are_positions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import Hashes, hashes_of_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, user_frames, variables_of

_ROWS = 2**17  # that are hashed
_BYTES = 2**26
_INPUTS = 4  # tensors that a pass is given
_NEAR = 12  # nodes from the loss
_FRAMES = 3  # of the user's code in which a target is looked for
_ENTRIES = 16  # of a batch
_DIFFERENCES = {"AbsBackward", "MulBackward", "PowBackward"}
_SPREAD = tuple(np.uint64(n) for n in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class EpochPairs(Watcher):
    """
    The Probe event "labels", of a first epoch and a second one that has the same in other pairs.

    An epoch is known by sums of hashes: those of twice as many batches are twice as large. Targets
    are what a loss function of torch is given, or what a loss by hand subtracts from the output.
    Where not all steps of epochs are seen, the event is of the rows that came again.

    The Probe event "partners": two inputs of a model that come in other pairs. measured: the rows;
    step: 1 where one of both comes in the order that it had.
    """

    makes = ("Probe:labels", "Probe:partners")
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._given: list[weakref.ref[torch.Tensor]] = []
        self._output: weakref.ref[torch.Tensor] | None = None
        self._module = self._source = ""
        self._batches: list[tuple[Hashes, Hashes]] = []
        self._sums: list[Hashes] = [np.zeros(4, np.uint64)]  # of rows, inputs, targets and pairs
        self._left = [_ROWS, _BYTES]
        self._pairs = RecurringPairs()
        self._partners: list[InputPairs] = []  # of the inputs after the first
        self._found: Probe | None = None

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._served = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a pass was given, until its loss is computed."""
        waiting, self._given = self._given, []
        if not forward.gradients or min(self._left) <= 0:
            return
        other = forward.module != (self._module or forward.module)
        if waiting or other or tells_an_order(output):
            self._give_up()  # several passes, or orders: whose target is whose is not known
            return
        given = self.recorder.given
        made = next((t for t in tensors_in(output) if t.requires_grad), None)
        if 0 < len(given) <= _INPUTS and made is not None:
            self._module = forward.module
            self._given = [weakref.ref(tensor) for tensor in given]
            self._output = weakref.ref(made)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for the target of a loss that was written by hand."""
        if not self._given or loss.grad_fn is None or self._output is None:
            return
        output = self._output()
        if output is not None and output.is_cpu:  # elsewhere a comparison would be waited for
            with suppress(Exception):  # a constant that was changed since cannot be read
                target = _find_target(loss, output.detach())
                if target is not None:
                    self._add(target, caller())
        self._given = []

    def finish(self) -> Iterable[Event]:
        """Return what was found in epochs, or in what came again of those seen in part."""
        known = None if "labels" in self.looked else self._pairs.judge()
        if known is not None:
            self.looked.add("labels")
            self._tell(*known, len(self._pairs.latest))
        found = [] if self._found is None else [self._found]
        return [*found, *self._find_partners()]

    def _find_partners(self) -> Iterator[Probe]:
        """Yield what is known of inputs that come in other pairs."""
        for place, partners in enumerate(self._partners, start=1):
            rows = partners.judge()
            self.looked |= {"partners"} if rows is not None else set()
            if rows:
                yield make_probe(
                    "partners",
                    rows,
                    step=int(partners.one_stays),
                    label=f"input {place} of {self._module}",
                    source=self._source,
                )

    def _give_up(self) -> None:
        """Take down no more, and judge nothing."""
        self._left[0], self._pairs, self._partners = 0, RecurringPairs(), []

    def _tell(self, changed: float, allowed: float, count: int) -> None:
        """Take down that so many rows came with other targets, where it is more than is allowed."""
        if changed > allowed > 0:
            self._found = Probe(
                probe="labels",
                measured=changed,
                reference=allowed,
                label=f"{count} rows that came again",
                source=self._source,
            )

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down the pairs that the first loss after a pass is made of."""
        if self._given and value.requires_grad:
            with suppress(Exception):  # tensors of foreign kinds refuse what they like
                self._add(target, tally.source)
            self._given = []

    def _add(self, target: torch.Tensor, source: str) -> None:
        """Take down the pairs of a batch, and see whether it ends a second epoch."""
        tensors = [tensor for ref in self._given if (tensor := ref()) is not None]
        rows = len(target) if target.dim() else 0
        tensors, target = [*map(self._served.on_host, tensors)], self._served.on_host(target)
        every = [*tensors, target]
        self._left[0] -= rows
        self._left[1] -= sum(t.numel() * t.element_size() for t in every)
        if (
            len(tensors) < len(self._given)
            or not rows
            or not all(_is_plain(t, rows) for t in every)
        ):
            self._give_up()
            return
        self._source = self._source or source
        self._partners = self._partners or [InputPairs() for _ in tensors[1:]]
        with torch.no_grad():
            each = [_mix(_hash(tensor) + np.uint64(n)) for n, tensor in enumerate(tensors)]
            inputs = _mix(np.stack(each).sum(0, dtype=np.uint64))
            targets = _mix(_hash(target.double()))
        for pairs, other in zip(self._partners, each[1:], strict=False):
            pairs.add(each[0], other, self.recorder.steps)
        self._batches.append((inputs, targets))
        self._pairs.add(inputs, targets)
        sums = [np.uint64(rows), *(_sum(e) for e in (inputs, targets, _mix(inputs + 3 * targets)))]
        self._sums.append(self._sums[-1] + np.array(sums, np.uint64))
        count = len(self._batches)
        middle, end = self._sums[count // 2], self._sums[-1]
        twice = end == middle + middle
        if count % 2 == 0 and middle[0] >= LEAST and twice[:3].all():
            self._compare(count // 2, is_same=bool(twice[3]))

    def _compare(self, half: int, *, is_same: bool) -> None:
        """Compare the pairs of two epochs, once both are over."""
        self._left[0] = 0
        self.looked.add("labels")
        batches, self._batches = self._batches, []
        if is_same or are_positions([targets.tolist() for _, targets in batches[half:]]):
            return
        first, second = (_targets_of(part) for part in (batches[:half], batches[half:]))
        epochs = Epochs(first, second)
        changed, chance = epochs.share()
        if not epochs.is_renamed():
            self._tell(changed, NOISE * chance, len(second))


def _is_plain(tensor: torch.Tensor, rows: int) -> bool:
    """Say whether a tensor has so many rows that can be read."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return plain and tensor.dim() > 0 and len(tensor) == rows and not tensor.requires_grad


def _hash(tensor: torch.Tensor) -> Hashes:
    """Return a hash of each row."""
    return hashes_of_rows(tensor.reshape(len(tensor), -1))


def _mix(hashes: Hashes) -> Hashes:
    """Return hashes whose sums are as good as random, where the given ones add up."""
    for shift, factor in zip((30, 27), _SPREAD, strict=True):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * factor
    return hashes ^ (hashes >> np.uint64(31))


def _sum(hashes: Hashes) -> np.uint64:
    """Return the sum of hashes, whatever is too much for 64 bits left out."""
    return np.uint64(hashes.sum(dtype=np.uint64))


def _targets_of(batches: list[tuple[Hashes, Hashes]]) -> dict[int, int]:
    """Return the target of each row; the last one where it came with several."""
    inputs, targets = (np.concatenate(side).tolist() for side in zip(*batches, strict=True))
    return dict(zip(inputs, targets, strict=True))


def _find_target(loss: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    """Return what a loss by hand takes from an output, if one of the user's variables is it."""
    for node in autograd_graph.below(loss.grad_fn, _NEAR):
        kept = autograd_graph.saved(node, "self")
        if autograd_graph.kind_of(node) not in _DIFFERENCES or kept is None:
            continue
        for tensor in _variables():
            if tensor.shape == kept.shape and tensor.numel() == output.numel():
                difference = output.reshape(tensor.shape) - tensor
                if torch.equal(difference, kept) or torch.equal(-difference, kept):
                    return tensor
    return None


def _variables() -> Iterator[torch.Tensor]:
    """Yield the tensors without gradients that the user's functions have at hand, nearest first."""
    for frame in user_frames(_FRAMES):
        for value in variables_of(frame).values():
            small = type(value) in (tuple, list) and len(value) <= _ENTRIES
            for each in value if small else value.values() if _is_record(value) else [value]:
                if type(each) is torch.Tensor and not each.requires_grad and each.dim():
                    yield each


def _is_record(value: Any) -> bool:
    """Say whether a value is a dictionary of a few fields, as of a batch."""
    return type(value) is dict and len(value) <= _ENTRIES
