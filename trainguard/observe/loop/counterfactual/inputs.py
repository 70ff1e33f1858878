"""Inputs edited: whether anything of a step depends on what the model is shown."""

import torch

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)


class InputsEdited(Question):
    """
    The elements of every input, of ids the rows, are put in the opposite order.

    measured: how many of loss, output and gradients changed by a bit; reference: of how many. Where
    no matrix of the model gets a gradient in either step, `numbers` is (1,), else (0,).
    """

    name = "inputs edited"
    settled_by = ("a sample edited", "batch in another order")

    def fits(self, call: ModuleCall) -> str:
        """Ask where all inputs that hold numbers can be edited, and one would be another then."""
        numbers = [t for t in call.tensors() if t.dtype != torch.bool and t.dim()]
        if not numbers or not all(map(is_editable, numbers)):
            return ""
        edited = sum(not torch.equal(t, _reverse(t)) for t in numbers)
        return f"{edited} of {len(numbers)} inputs in the opposite order" if edited else ""

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Put the elements of each input in the opposite order."""
        with torch.no_grad():
            for tensor in call.tensors():
                if tensor.dtype != torch.bool and tensor.dim():
                    tensor.copy_(_reverse(tensor))

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count what changed; a target that was edited with the input is no matter."""
        kinds = ("loss", "output", "gradients")
        changed = sum(plain[kind] != edited[kind] for kind in kinds)
        if not changed and not plain["given"]:
            return Contrast(void="no loss function of torch was called")
        if not changed and not plain["output"]:
            return Contrast(void="the output cannot be compared")
        dead = min(plain["idle"], edited["idle"]) > 0
        return Contrast(float(changed), float(len(kinds)), (float(dead),))

    def is_settled(self, contrast: Contrast) -> bool:
        """One change is enough, as is a matrix that learns."""
        return contrast.measured > 0 or contrast.numbers == (0.0,)


def _reverse(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with its elements in the opposite order, or its rows of ids."""
    if not tensor.is_floating_point():  # each column of ids may have a range of its own
        return tensor.detach().flip(0)
    return tensor.detach().flatten().flip(0).view(tensor.shape)
