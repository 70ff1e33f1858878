"""Micro-batches regrouped: whether it matters which samples of a step are in which of them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainguard.observe.loop.counterfactual.batch_parts import forget_gradients
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.order import drop_nothing, reorder
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall
from trainguard.observe.loop.counterfactual.replay import BatchAgain, latest_iterator
from trainguard.observe.loop.counterfactual.samples import SampleEdited, refuse_statistics
from trainguard.observe.loop.counterfactual.shortcuts import distance
from trainguard.observe.loop.counterfactual.witness import Witness, read_streams_at, sketch
from trainguard.observe.loop.watch.models.mixing_probe import draws_samples
from trainguard.observe.loop.window import Window

_MOST_PASSES = 32


class MicroBatchesRegrouped(BatchAgain):
    """
    The samples of all micro-batches of the next step are dealt out to them in another way.

    measured: how far the gradients that the step is made with are apart, of the larger norm;
    reference: of how many micro-batches. Dropout is left out. Void where a sample depends on
    others, where random numbers are drawn, or where the next step has other micro-batches.
    """

    name = "micro-batches regrouped"
    asks = 1
    settled_by = ()
    needs_follow_ups = True

    def __init__(self, sample: SampleEdited, *, regroups: bool = False) -> None:
        self._sample = sample  # what became of the others when one was edited
        self._regroups = regroups
        self._passes, self._whole = 0, Report()

    def prepare(self, window: Window) -> None:
        """Remember how many micro-batches the latest step had."""
        self._passes = len(window.losses)
        self.makes = 2 * self._passes

    def fits(self, call: ModuleCall) -> str:
        """Ask where one optimizer steps after several batches, whose samples a loader draws."""
        iterator = latest_iterator(call)
        drawn = iterator is not None and draws_samples(iterator()) is not None
        able = drawn and 1 < self._passes <= _MOST_PASSES and super().fits(call)
        return f"the samples of {self._passes} micro-batches" if able else ""

    def applies(self, plain: Report) -> bool:
        """Say whether no sample changes another, and a loss function is given all of them."""
        return self._sample.keeps_others and bool(plain["given"])

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Leave dropout out, and let the step that has begun move nothing."""
        torch.batch_norm = refuse_statistics(torch.batch_norm, way_out)
        drop_nothing(call.module)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks at the gradients of the next step."""
        iterator = latest_iterator(call)
        assert iterator is not None
        return _GroupsWitness(call, way_out, iterator(), self._passes, self._regroups)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Hold both groupings against each other, once both are known."""
        self._whole = edited
        return Contrast()

    def follow_ups(self, contrast: Contrast) -> "list[MicroBatchesRegrouped]":
        """Ask for the other grouping."""
        other = MicroBatchesRegrouped(self._sample, regroups=True)
        other._passes = self._passes
        return [other]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Say how far the gradients are apart."""
        if self._whole["streams"] != edited["streams"]:
            return Contrast(void="random numbers are drawn")
        apart = distance(self._whole["sketch"], edited["sketch"])
        return Contrast(apart, float(self._passes)) if apart >= 0 else Contrast(void="no gradients")

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is for all."""
        return True


class _GroupsWitness(Witness):
    """Regroups the samples of the next step, and reports the gradients that it is made with."""

    def __init__(
        self, call: ModuleCall, way_out: Exit, iterator: Any, passes: int, regroups: bool
    ) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._iterator, self._most, self._regroups = iterator, passes, regroups
        self._made = self._steps = self._began_at = 0

    def take_over(self) -> None:
        """Wait for two steps."""
        super().take_over()
        register_optimizer_step_pre_hook(self._on_step)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Count, and go on."""
        self._made += 1

    def _on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Let the first step move nothing, and report with the second."""
        if self._made != self._most:
            self.way_out.void("steps have different numbers of micro-batches")
        if self._steps:
            changed = self._began_at != read_streams_at()
            self.way_out.void("random numbers are drawn") if changed else None
            self.way_out.report(sketch=sketch(self._held()), streams=read_streams_at())
        forget_gradients(optimizer)
        self._steps, self._made = 1, 0
        self.recorder.patches.watching = True
        self._began_at = read_streams_at()
        self._iterator._sampler_iter = self._deal(self._iterator._sampler_iter)  # noqa: SLF001

    def _deal(self, drawn: Iterator[Any]) -> Iterator[Any]:
        """Yield the numbers of samples for each micro-batch."""
        groups = list(islice(drawn, self._most))
        if len(groups) < self._most:
            self.way_out.void("the epoch is over")
        samples = [sample for group in groups for sample in group]
        if self._regroups:
            samples = [samples[place] for place in reorder(len(samples)).tolist()]
        rest = iter(samples)
        yield from (list(islice(rest, len(group))) for group in groups)
        yield from drawn
