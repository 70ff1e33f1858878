"""Labels exchanged: whether it matters which label belongs to which sample."""

import math
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)
from trainguard.observe.loop.counterfactual.sample_axis import count_samples
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import storage_of

ROUNDING = 10.0  # times that of a loss: sums over samples are made in another order
_UNUSED = "the step depends on none of them"


class LabelsExchanged(Question):
    """
    What a loader has served besides a model's inputs goes to the next sample.

    measured: 1 where the loss or the gradients are others then, else 0. Void where they do not
    depend on the labels at all, as in what learns without them, or a module is given them.
    """

    name = "labels exchanged"
    asks = 2
    exchanges = True  # else the first label is made equal to another one

    def fits(self, call: ModuleCall) -> str:
        """Ask where a loader draws samples at random, and serves numbers besides the inputs."""
        labels = labels_of(call)
        if not labels or all(torch.equal(label, label.roll(1, 0)) for label in labels):
            return ""
        return f"{len(labels[0])} labels, each to the next sample"

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let each label go to the next sample, or be that of another sample."""
        with torch.no_grad():
            for label in labels_of(call):
                label.copy_(label.roll(1, 0) if self.exchanges else _other(label))

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that gives up where a module is given a label."""
        return LabelWitness(call.recorder, way_out, call.module, labels_of(call))

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say whether the loss or the gradients have changed; if not, labels may be of no use."""
        if plain["streams"] != edited["streams"]:
            return Contrast(void="the edit changed how many random numbers are drawn")
        rows = plain["returned"]
        if rows is None or _are_alike(rows.scores, ROUNDING * plain["rounding"]):
            return Contrast(void="every sample has the same output")
        changed = differ(plain, edited)
        return Contrast(float(changed), 1.0, void="" if changed else _UNUSED)

    def follow_ups(self, contrast: Contrast) -> list[Question]:
        """Ask whether the step depends on the labels, where their order does not matter."""
        return [_LabelReplaced()] if contrast.void == _UNUSED else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Believe that their order does not matter where one label matters."""
        if not differ(plain, edited):
            return None
        shown = f"{edit} the loss is {edited['loss']:.6g}, with all exchanged {plain['loss']:.6g}"
        return contrast._replace(void="", smallest=shown + " as before")

    def is_settled(self, contrast: Contrast) -> bool:
        """Once they matter, they matter."""
        return contrast.measured > 0


class _LabelReplaced(LabelsExchanged):
    """The first label becomes another one: whether the step depends on the labels at all."""

    exchanges = False

    def fits(self, call: ModuleCall) -> str:
        """Return what is edited."""
        return "with the first label replaced by another one"


class LabelWitness(Witness):
    """Gives up where a module is given one of the labels: it is an input."""

    def __init__(
        self, recorder: Any, way_out: Exit, module: nn.Module, labels: list[torch.Tensor]
    ) -> None:
        super().__init__(recorder, way_out, module)
        self._places = {storage_of(label) for label in labels}

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what a module was given."""
        if any(storage_of(tensor) in self._places for tensor in tensors_in(inputs)):
            self.way_out.void("a module is given what would be exchanged")
        super().forward(forward, module, inputs, output)


def labels_of(call: ModuleCall) -> list[torch.Tensor]:
    """Return what a loader served for each sample, besides what the call is given."""
    rows = count_samples(call)
    recent = call.recorder.watcher(Batches).recent
    if not rows or not recent or not any(recent[-1].has(tensor) for tensor in call.tensors()):
        return []
    given = {storage_of(tensor) for tensor in call.tensors()}
    served = [t for t in recent[-1].alive() if storage_of(t) not in given]
    able = all(t.dim() and len(t) == rows and is_editable(t) for t in served)
    return served if able else []


def _are_alike(scores: torch.Tensor, share: float) -> bool:
    """Say whether rows are the same within rounding, by which alone a loss would be another."""
    return bool((abs(scores - scores[:1]) <= share * abs(scores)).all())


def _other(label: torch.Tensor) -> torch.Tensor:
    """Return labels of which the first is another one that occurs."""
    edited = label.clone()
    other = next((row for row in label if not torch.equal(row, label[0])), label[0])
    edited[0] = other
    return edited


def differ(plain: Report, edited: Report) -> bool:
    """Say whether a loss or the gradients differ by more than rounding."""
    share = ROUNDING * plain["rounding"]
    if not math.isclose(plain["loss"], edited["loss"], rel_tol=share):
        return True
    largest = max(plain["norms"], default=0.0)
    pairs = zip(plain["norms"], edited["norms"], strict=True)
    return any(abs(a - b) > share * largest for a, b in pairs)
