"""Labels exchanged: whether it matters which label belongs to which sample."""

import math
from collections.abc import Iterator
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
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, below, kind_of, saved
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import storage_of

ROUNDING = 10.0  # times that of a loss: sums over samples are made in another order
_NODES = 2000  # between a loss and an output
_ABSOLUTE = {"AbsBackward", "HuberLossBackward", "L1LossBackward", "SmoothL1LossBackward"}
_SAME_PULL = 1e-6  # of a gradient, which is a number divided by how many there are
_UNUSED = "the step depends on none of them"
_FAR = "all outputs are so far from their labels that each is pulled alike"


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
        if differ(plain, edited):
            return Contrast(1.0, 1.0)
        return Contrast(0.0, 1.0, void=_FAR if edited["alike"] else _UNUSED)

    def follow_ups(self, contrast: Contrast) -> list[Question]:
        """Ask whether the step depends on the labels, where their order does not matter."""
        return [_LabelReplaced()] if contrast.void == _UNUSED else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Believe that their order does not matter where one label matters to the gradients."""
        if not differ(plain, edited):
            return None
        if not pulls_differ(plain, edited):
            return contrast._replace(void=_FAR)  # as errors do that are all on one side
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
    """
    Gives up where a module is given one of the labels: it is an input.

    Reports whether all rows of the output get the same gradient by an absolute error of their own,
    as they do where all are too small, or all too large: there their order is no matter.
    """

    alike = False

    def __init__(
        self, recorder: Any, way_out: Exit, module: nn.Module, labels: list[torch.Tensor]
    ) -> None:
        super().__init__(recorder, way_out, module)
        self._places = {storage_of(label) for label in labels}
        self._count, self._each = 1, False
        self._returned: Node | None = None

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what a module was given."""
        if any(storage_of(tensor) in self._places for tensor in tensors_in(inputs)):
            self.way_out.void("a module is given what would be exchanged")
        if module is self.module and not self.output:
            for tensor in [t for t in tensors_in(output) if t.requires_grad and t.dim()][:1]:
                torch.Tensor.register_hook(tensor, self._see_pulls)  # type: ignore[no-untyped-call]
                self._count, self._returned = len(tensor), tensor.grad_fn
        super().forward(forward, module, inputs, output)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for absolute errors of each row, between the output and the loss."""
        super().before_backward(loss)
        own = set(self._nodes(self._returned))
        kinds = [node for node in self._nodes(loss.grad_fn) if kind_of(node) in _ABSOLUTE]
        kept = [saved(node, "self") for node in kinds if node not in own]
        self._each = any(isinstance(t, torch.Tensor) and t.numel() >= self._count for t in kept)

    def _nodes(self, root: Node | None) -> Iterator[Node]:
        """Yield the nodes of a graph, where there is one."""
        return below(root, _NODES) if root is not None else iter(())

    def _see_pulls(self, gradient: torch.Tensor) -> None:
        """See whether all rows of the output get the same gradient."""
        self.alike = gradient.layout == torch.strided and _are_alike(gradient, _SAME_PULL)

    def more(self) -> Report:
        """Return whether they do, each by an error of its own."""
        return {"alike": self.alike and self._each}


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


def _are_alike(scores: Any, share: float) -> bool:
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
    lost = math.isclose(plain["loss"], edited["loss"], rel_tol=share)
    return not lost or pulls_differ(plain, edited)


def pulls_differ(plain: Report, edited: Report) -> bool:
    """Say whether gradients differ by more than rounding."""
    share = ROUNDING * plain["rounding"]
    largest = max(plain["norms"], default=0.0)
    pairs = zip(plain["norms"], edited["norms"], strict=True)
    return any(abs(a - b) > share * largest for a, b in pairs)
