"""What a child reports of the step that it goes on with: its loss, gradients and targets."""

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.loss_calls import LossCalls
from trainguard.observe.loop.watch.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward, gradient_of
from trainguard.observe.tools.fingerprint import fingerprint

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_MOST_CALLS = 64  # of losses that are compared
_ROUNDING = 1e-5  # of a loss in float32: sums of masked terms are exact zeros, orders stay
_NARROW = 1e-2  # of a loss that went through a dtype of 8 to 11 bits


class Witness(Watcher):
    """
    The only watcher of a child: it ends the child with a report once gradients have arrived.

    module: the one that was about to be called when the process forked.
    """

    def __init__(self, recorder: "Recorder", way_out: Exit, module: nn.Module) -> None:
        super().__init__(recorder)
        self.way_out, self.module = way_out, module
        self.output = 0
        self.given: list[tuple[str, int]] = []  # the function, and a fingerprint of its target
        self.loss = 0.0

    def take_over(self) -> None:
        """Become the recorder's only watcher."""
        losses = self.recorder.watcher(LossFunctions)
        losses.listeners[:] = [self.on_loss]
        self.recorder.leave = self.leave
        self.recorder.tell_only(self)

    def leave(self, error: BaseException | None) -> NoReturn:
        """End the child where the training that it went on with is over."""
        self.way_out.give_up(f"{type(error).__name__}: {error}" if error else "the training ended")

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take the fingerprint of what the module returned."""
        if module is self.module and not self.output:
            self.output = fingerprint(tensors_in(output))

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down what a loss function was given as its target."""
        if value.requires_grad and len(self.given) < _MOST_CALLS:
            self.given.append((tally.function, fingerprint([target])))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self.loss = total(loss)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report the step."""
        self.report_step()

    def report_step(self) -> NoReturn:
        """End the child with what it has seen."""
        pairs = [(p, gradient_of(p)) for p in self.module.parameters() if p.requires_grad]
        matrices = [gradient for p, gradient in pairs if p.dim() > 1]
        self.way_out.report(
            loss=self.loss,
            output=self.output,
            given=self.given,
            gradients=fingerprint(g for _, g in pairs if g is not None),
            idle=sum(g is None or not bool(g.any()) for g in matrices),
            rounding=_rounding_of(self.module),
        )


def total(loss: torch.Tensor) -> float:
    """Return the sum of what is handed to backward."""
    return float(loss.detach().double().sum())


def _rounding_of(module: nn.Module) -> float:
    """Return the share of a loss that may be rounding, after a model's dtypes."""
    narrow = {torch.float16, torch.bfloat16}
    casts = torch.is_autocast_enabled("cpu")
    return _NARROW if casts or narrow & {p.dtype for p in module.parameters()} else _ROUNDING
