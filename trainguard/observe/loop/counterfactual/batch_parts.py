"""Parts of a batch: whether the terms of a loss weigh alike, however many samples there are."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.order import drop_nothing
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall
from trainguard.observe.loop.counterfactual.replay import (
    BatchAgain,
    Rewound,
    is_order,
    latest_iterator,
    serve_again,
    take_again,
    variables,
)
from trainguard.observe.loop.counterfactual.sample_axis import FRAMES, with_rows
from trainguard.observe.loop.counterfactual.samples import refuse_statistics
from trainguard.observe.loop.counterfactual.witness import Witness, read_streams_at, total
from trainguard.observe.loop.watch.models.mixing_probe import draws_samples
from trainguard.observe.tools.user_line import user_frames, variables_of

if TYPE_CHECKING:
    from torch import nn

    from trainguard.observe.loop.recorder import Recorder

# The whole, its halves, its quarters, and the whole again, as shares of it: (from, to).
_PARTS = (
    *((0.0, 1.0), (0.0, 0.5), (0.5, 1.0)),
    *((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0), (0.0, 1.0)),
)
_LEAST_ROWS = 8
_ROUNDING = 10  # times that of a loss: there are sums of several, in another order
_NORMAL = {"randn", "randn_like", "normal", "normal_"}


class BatchDivided(BatchAgain):
    """
    A batch is served whole, in halves and in quarters, and no step moves anything meanwhile.

    Of a loss that is a mean M over the samples and a sum S over them, the halves have 2 M + S, the
    quarters 4 M + S: that tells both, and whether it is so at all. measured: the share of S;
    reference: 1; numbers: M and S. Noise of a normal distribution is zero, dropout is left out.
    Void where the samples of a batch depend on each other, or nothing tells M from a constant.
    """

    name = "batch divided"
    makes = len(_PARTS) + 1
    asks = 1
    settled_by = ()

    def fits(self, call: ModuleCall) -> str:
        """Ask where one optimizer learns from samples that a loader or an order draws."""
        rows = count_drawn(call)
        able = rows >= _LEAST_ROWS and rows % 4 == 0 and self.is_alone(call)
        return f"{rows} samples whole, in halves, in quarters" if able else ""

    def applies(self, plain: Report) -> bool:
        """Say whether the loss is more than what one loss function of torch returned."""
        return not plain["alone"]

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Take randomness out, and let nothing be learned."""
        torch.batch_norm = refuse_statistics(torch.batch_norm, way_out)
        drop_nothing(call.module)
        register_optimizer_step_pre_hook(forget_gradients)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that serves the parts, and looks at what becomes of them."""
        witness = self.follow(call, way_out)
        iterator = latest_iterator(call)
        if iterator is not None:
            serve_again(iterator, witness.serve)
        elif take_again(call):
            witness.begin_with_steps()
        else:
            way_out.void("the batch does not come again")
        Divided(witness, iterator is None).__enter__()  # type: ignore[no-untyped-call]
        return witness

    def follow(self, call: ModuleCall, way_out: Exit) -> "PartsWitness":
        """Return one that follows the loss through the parts."""
        return PartsWitness(call.recorder, way_out, call.module, count_drawn(call))

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Tell sums from means."""
        losses = edited["losses"]
        if not all(map(math.isfinite, losses)) or losses[0] != losses[-1]:
            return Contrast(void="the same batch does not give the same finite loss")
        return _tell_apart(losses, _ROUNDING * plain["rounding"])

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is for all."""
        return True


def _tell_apart(losses: list[float], share: float) -> Contrast:
    """Return what of a loss is a sum over samples, if it is nothing but that and a mean."""
    whole, left, right, *quarters, _ = losses
    near = share * max(map(abs, losses))
    mean = left + right - whole
    parts = quarters[0] + quarters[1] - left, quarters[2] + quarters[3] - right
    if abs(mean - sum(parts) / 2) > near:
        return Contrast(void="the loss is no sum over samples, and no mean over them")
    added = whole - mean
    sums = left - parts[0], right - parts[1]
    mean = 0.0 if abs(parts[0] - parts[1]) <= near else mean  # a constant has no samples
    added = 0.0 if abs(sums[0] - sums[1]) <= near else added
    size = abs(mean) + abs(added)
    return Contrast(abs(added) / size if size else 0.0, 1.0, (mean, added))


class PartsWitness(Witness):
    """Serves the parts of a batch, and reports the sum of what goes backward for each of them."""

    def __init__(self, recorder: "Recorder", way_out: Exit, module: "nn.Module", rows: int) -> None:
        super().__init__(recorder, way_out, module)
        self.drawn, self._losses, self._before = rows, list[float](), 0

    @property
    def part(self) -> slice:
        """The rows that are served now: all of them before the first part."""
        begin, end = _PARTS[max(0, len(self._losses) - 1)]
        return slice(int(begin * self.drawn), int(end * self.drawn))

    def serve(self, batch: Any) -> Any:
        """Return the next part of a batch, and look at all that is made of it."""
        self._go_on()
        return cut(batch, self.part, self.drawn, self.way_out.void)

    def begin_with_steps(self) -> None:
        """Go on to the next part with each step, where no loader serves it, and rewind."""
        rewinds = Rewound(*variables())

        def go_on(*_: Any) -> None:
            """Put random generators back, and go on."""
            rewinds.put_back()
            self._go_on()

        register_optimizer_step_pre_hook(go_on)

    def _go_on(self) -> None:
        """Go on to the next part, or report after the last one."""
        if len(self._losses) == len(_PARTS):
            self.way_out.report(losses=self._losses)
        self._losses.append(0.0)
        self.recorder.patches.watching = True
        self._before = read_streams_at()

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        if self._losses:
            self._losses[-1] += total(loss)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Give up where other random numbers were drawn."""
        if self._losses and self._before != read_streams_at():
            self.way_out.void("random numbers are drawn")


class Divided(TorchFunctionMode):
    """Takes the rows of a part from tables, and draws zeros from normal distributions."""

    def __init__(self, witness: PartsWitness, takes: bool) -> None:
        super().__init__()
        self._witness, self._takes = witness, takes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and set what it has drawn to zero."""
        name = getattr(func, "__name__", "")
        if self._takes and name == "__getitem__" and self._is_batch(args[1]):
            return func(args[0], args[1][self._witness.part])
        if name not in _NORMAL:
            return func(*args, **(kwargs or {}))
        stream = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        torch.default_generator.set_state(stream)
        return result.detach_().zero_()

    def _is_batch(self, index: Any) -> bool:
        """Say whether an index has a number for each sample of a batch."""
        able = isinstance(index, torch.Tensor) and index.dim() == 1 and index.dtype == torch.int64
        return able and len(index) == self._witness.drawn


def forget_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Let a step move nothing."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def count_drawn(call: ModuleCall) -> int:
    """Return how many samples a loader, or an order of the user's, draws for a batch; or 0."""
    iterator = latest_iterator(call)
    if iterator is not None:
        sampler = draws_samples(iterator())
        return sampler.batch_size if sampler is not None else 0
    given, held = with_rows(call), map(variables_of, user_frames(FRAMES))
    rows = len(given[0]) if given else 0
    orders = (value for each in held for value in each.values() if is_order(value))
    return rows if any(len(order) >= 2 * rows for order in orders) else 0


def cut(batch: Any, part: slice, rows: int, void: Callable[[str], Any]) -> Any:
    """Return a part of all that has a row for each sample; nothing else may be in a batch."""
    if isinstance(batch, torch.Tensor) and batch.dim() and len(batch) == rows:
        return batch[part].clone()
    if isinstance(batch, dict):
        return type(batch)({key: cut(value, part, rows, void) for key, value in batch.items()})
    if type(batch) in (list, tuple):
        plain = len(batch) == rows and not isinstance(batch[0], (torch.Tensor, list, tuple, dict))
        return batch[part] if plain else type(batch)(cut(v, part, rows, void) for v in batch)
    void("a batch has more in it than a row for each sample")
    return batch
