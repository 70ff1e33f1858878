"""The same batch again: whether the run's own steps lower its loss."""

import copy
import gc
import math
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from trainguard.observe.loader.reachable_state import generators, put_back, state_of
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.sample_axis import FRAMES, pools_of, with_rows
from trainguard.observe.loop.counterfactual.witness import Witness, total
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Forward, Window, is_climbed
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.isolation import read_streams, write_streams
from trainguard.observe.tools.user_line import foreign, user_frames, variables_of

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_PAIRS = 8  # steps after which the loss of the batch is looked at again
_TINY = 0.01  # times the rate: those that are set too high by mistake are so by less, mostly


class BatchAgain(Question):
    """
    One batch comes again and again, at the same random state.

    A loader serves it again. Where there is none, all random generators are put back after each
    step, and an order by which rows are taken has the rows of this batch everywhere.

    measured: after how many steps the loss of the batch was higher than before; reference: of how
    many; numbers: the losses. Where it was after each, a hundredth of the rate is tried too, and
    enters is what is at fault: the "sign" where the loss goes up all the same, the "rate" where it
    goes down. Void where a step has several backward passes, where the loss goes up by intention,
    or where the batch does not come again.
    """

    name = "the same batch again"
    makes = _PAIRS + 2
    settled_by: tuple[str, ...] = ("one batch learned",)
    passes = 1  # of backward in the step before

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate  # times the run's own

    def prepare(self, window: Window) -> None:
        """Count the passes of the step that was just made."""
        self.passes = len(window.losses)

    def fits(self, call: ModuleCall) -> str:
        """Ask where one optimizer alone makes steps, with one backward pass each."""
        return f"one batch, {_PAIRS} steps" if self.passes <= 1 and self.is_alone(call) else ""

    def is_alone(self, call: ModuleCall) -> bool:
        """Say whether one optimizer alone makes steps, and none that is to raise its loss."""
        stepping = [window for window in call.recorder.windows if window.index]
        if len(stepping) != 1 or call.recorder.hand.window is not None:
            return False
        optimizer = stepping[0].optimizer() if stepping[0].optimizer is not None else None
        return optimizer is not None and not is_climbed(stepping)

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let the loader serve its next batch from now on, or this one come again without it."""
        iterator = latest_iterator(call)
        if iterator is not None:
            serve_again(iterator)
        else:
            take_again(call)
        if self.rate != 1.0:
            factor = 0.0 if math.isinf(self.rate) else self.rate
            MultipliedRates(factor).install()

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that follows the loss through several steps."""
        return self.prepare_witness(LossesWitness(call.recorder, way_out, call.module), call)

    def prepare_witness(self, witness: "LossesWitness", call: ModuleCall) -> "LossesWitness":
        """Let a witness put random generators back, where no loader serves the batch."""
        if latest_iterator(call) is None:
            witness.rewinds = Rewound(*variables())
        return witness

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count the steps after which the loss of the batch was higher."""
        losses, values = edited["losses"][1:], edited["values"][1:]
        if any(len(each) != 1 for each in losses) or not math.isfinite(losses[0][0]):
            self.asks = 1  # nor will later steps
            return Contrast(void="not every step has one backward pass with a finite loss")
        flat = [each[0] for each in losses]
        if not all(values):
            self.asks = 1
            return Contrast(void="no loss function of torch was called")
        both = [_rises(flat), _rises([sum(each) for each in values])]
        return Contrast(float(min(both)), float(len(flat) - 1), tuple(flat))

    def follow_ups(self, contrast: Contrast) -> "Sequence[Question]":
        """Try a hundredth of the rate, where each step makes the loss higher."""
        return [] if contrast.void or self.is_settled(contrast) else [BatchAgain(_TINY)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Put it down to the sign or to the rate."""
        found = self.compare(plain, edited)
        if found.void or 0 < found.measured < found.reference:
            return None
        return contrast._replace(enters="sign" if found.measured else "rate")

    def is_settled(self, contrast: Contrast) -> bool:
        """One step that helps is enough."""
        return contrast.measured < contrast.reference


class MultipliedRates:
    """
    Multiplies the rates that steps are made with, and puts them back after each.

    A scheduler may go on from the rate that it finds, and an optimizer may step another one inside.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._own: dict[int, Any] = {}  # by group, while it is multiplied

    def install(self) -> list[RemovableHandle]:
        """Be told of all steps from now on; return what ends that."""
        before = register_optimizer_step_pre_hook(self._multiply)
        return [before, register_optimizer_step_post_hook(self._put_back)]

    def _multiply(self, optimizer: Optimizer, *_: Any) -> None:
        """Multiply the rates of all groups, but for those that are multiplied already."""
        for group in optimizer.param_groups:
            if "lr" in group and id(group) not in self._own:
                self._own[id(group)] = group["lr"]
                group["lr"] = group["lr"] * self._factor

    def _put_back(self, optimizer: Optimizer, *_: Any) -> None:
        """Put them back."""
        for group in optimizer.param_groups:
            if id(group) in self._own:
                group["lr"] = self._own.pop(id(group))


class LossesWitness(Witness):
    """Reports the losses of several steps, and what loss functions returned in them."""

    def __init__(self, recorder: "Recorder", way_out: Exit, module: nn.Module) -> None:
        super().__init__(recorder, way_out, module)
        self.losses: list[list[float]] = [[]]
        self.values: list[list[float]] = [[]]
        self.rewinds: Rewound | None = None  # where no loader serves the batch
        self._shown: dict[int, int] = {}  # what the module is given first in each step
        register_optimizer_step_post_hook(self._on_step)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down what a loss function returned."""
        if value.requires_grad:
            self.values[-1].append(float(value.detach().double().mean()))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See that it is the same batch, but for the first, which may be another one."""
        super().forward(forward, module, inputs, output)
        step = len(self.losses)
        if self.rewinds is not None and module is self.module and step not in self._shown:
            self._shown[step] = fingerprint(tensors_in(inputs))
            if step > 2 and self._shown[step] != self._shown.get(2):
                self.way_out.void("the batch does not come again")

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self.losses[-1].append(total(loss))

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report once enough steps were made."""
        if len(self.losses) > _PAIRS + 1:
            self.way_out.report(losses=self.losses, values=self.values)

    def _on_step(self, *_: Any) -> None:
        """Begin the next step; all of them are looked at."""
        self.recorder.patches.watching = True
        if self.rewinds is not None:
            self.rewinds.put_back()
        self.losses.append([])
        self.values.append([])


class Rewound:
    """The random generators, global and held by variables, that are put back after each step."""

    def __init__(self, *variables: dict[str, Any]) -> None:
        self._held = list(generators(*variables).values())
        self._states: tuple[Any, list[Any]] | None = None

    def put_back(self) -> None:
        """Put all of them back to where they were at the first call."""
        if self._states is None:
            self._states = read_streams(), [copy.deepcopy(state_of(each)) for each in self._held]
            return
        streams, states = self._states
        write_streams(streams)
        for generator, state in zip(self._held, states, strict=True):
            put_back(generator, copy.deepcopy(state))


def latest_iterator(call: ModuleCall) -> "weakref.ref[Any] | None":
    """Return the iterator of the loader that served the latest batch, if there is one."""
    recent = call.recorder.watcher(Batches).recent
    return recent[-1].iterator if recent and recent[-1].iterator() is not None else None


def take_again(call: ModuleCall) -> bool:
    """
    Give an order by which rows are taken from a table those of this call everywhere.

    The next order that torch draws for as many rows is the same. Return whether there is one.
    """
    for order, rows in _orders_of(call):
        repeated = torch.from_numpy(np.resize(rows, len(order)))
        order[:] = repeated if isinstance(order, torch.Tensor) else repeated.numpy()
        setattr(torch, "randperm", _draw_again(torch.randperm, repeated))  # noqa: B010 for mypy
        return True
    return False


def _draw_again(draw: Callable[..., Any], order: torch.Tensor) -> Callable[..., Any]:
    """Return a `torch.randperm` that returns an order where one of as many rows is wanted."""

    @wraps(draw)
    def wrapper(n: int, *args: Any, **kwargs: Any) -> Any:
        """Draw, and return the order or what was drawn."""
        drawn = draw(n, *args, **kwargs)
        return order.to(drawn) if n == len(order) else drawn

    return wrapper


def _orders_of(call: ModuleCall) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """Yield variables with an order of rows, a part of which the call is given, and that part."""
    held = list(variables())
    orders = [value for each in held for value in each.values() if is_order(value)]
    for tensor in with_rows(call) if orders else ():
        for table in map(torch.as_tensor, pools_of(tensor, held)):
            for order in orders:
                rows = _as_array(order)
                for begin in range(0, len(rows) - len(tensor) + 1, len(tensor)):
                    part = rows[begin : begin + len(tensor)]
                    if part.max() < len(table) and torch.equal(table[part], tensor.detach()):
                        yield order, part.copy()


def variables() -> Iterator[dict[str, Any]]:
    """Yield the variables of the user's code that is running, and of generators that wait."""
    yield from map(variables_of, user_frames(FRAMES))
    frames = [g.gi_frame for g in gc.get_objects() if type(g) is GeneratorType]
    for frame in frames:
        if frame is not None and foreign(frame.f_code.co_filename):
            yield variables_of(frame)


def is_order(value: Any) -> bool:
    """Say whether a variable is a permutation of the numbers of rows."""
    kinds = isinstance(value, np.ndarray) and value.dtype.kind == "i"
    kinds |= isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.is_cpu
    return bool(kinds and value.ndim == 1 and 1 < len(value) == len(np.unique(_as_array(value))))


def _as_array(order: Any) -> Any:
    """Return the numbers of an order of the user's, which torch takes as an index."""
    return array_of(order).copy() if isinstance(order, torch.Tensor) else order


def serve_again(chosen: "weakref.ref[Any]", make: Callable[[Any], Any] = copy.deepcopy) -> None:
    """Let an iterator serve what is made of its next batch for ever, at this random state."""
    kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
    advance = kind.__next__
    numpy = sys.modules.get("numpy")
    own, torchs = random.getstate(), torch.default_generator.get_state()
    theirs = numpy.random.get_state() if numpy else None
    kept: list[Any] = []

    @wraps(advance)
    def wrapper(iterator: Any) -> Any:
        """Return the batch, and put the random streams back."""
        if iterator is not chosen():
            return advance(iterator)
        if not kept:
            kept.append(advance(iterator))
        random.setstate(own)
        torch.default_generator.set_state(torchs)
        if numpy is not None:
            numpy.random.set_state(theirs)
        return make(kept[0])

    kind.__next__ = wrapper


def _rises(values: list[float]) -> int:
    """Count how often a value is higher than the one before; what is not finite is."""
    return sum(b > a or not math.isfinite(b) for a, b in pairwise(values))
