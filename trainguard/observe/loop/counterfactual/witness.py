"""What a child reports of the step that it goes on with: its loss, gradients and targets."""

import errno
import math
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from zlib import crc32

import numpy as np
import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.marked_graph import find_sums_with_constants, has_noise
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward, gradient_of
from trainguard.observe.tools.fingerprint import fingerprint

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[Any]]
_MOST_CALLS = 64  # of losses that are compared
_MOST_SKETCHED = 2**12  # numbers of a tensor
MOST_GIVEN = 2**18  # numbers of what loss functions are given that are reported
_ROUNDING = 1e-5  # of a loss in float32: sums of masked terms are exact zeros, orders stay
_NARROW = 1e-2  # of a loss that went through a dtype of 8 to 11 bits

_NO_WORKER = "can only test a child process"  # multiprocessing, of one that the parent started


class GivenRows(NamedTuple):
    """
    Some numbers of what a loss function is given, or a module returns.

    shape: of all of it; scores, targets: a row for each of the first dimension, of which each
    `stride`th number is there; no targets where they have no such rows. Of what ctc_loss is given,
    the samples come first here.
    """

    function: str
    shape: tuple[int, ...]
    scores: Numbers
    targets: Numbers | None
    stride: int

    @classmethod
    def of(
        cls, function: str, scores: torch.Tensor, target: torch.Tensor | None, most: int
    ) -> "GivenRows | None":
        """Take down at most so many numbers, or nothing where there are more rows."""
        able = isinstance(scores, torch.Tensor) and scores.is_floating_point() and scores.numel()
        if not able or not scores.dim() or scores.layout != torch.strided or len(scores) > most:
            return None
        scores = scores.transpose(0, 1) if (function, scores.dim()) == ("ctc_loss", 3) else scores
        stride = max(1, -(-scores.numel() // most))
        targets = None
        if target is not None and target.dim() and len(target) == len(scores):
            targets = _rows_of(target, max(1, -(-target.numel() // most)))
        return cls(function, tuple(scores.shape), _rows_of(scores, stride), targets, stride)


class Witness(Watcher):
    """
    The only watcher of a child: it ends the child with a report once gradients have arrived.

    module: the one that was about to be called when the process forked. samples: of its batch,
    where that is known.
    """

    samples = 0
    noticed: Any = None  # what was counted of a step as it is
    casts = False  # whether a module was called under autocast
    # Whether something without a graph was added to what is handed to backward, and whether what
    # learns is multiplied by something like normal noise.
    sums = noise = False
    sketches = False  # whether the gradients themselves are reported
    results: Sequence[Any] = ()  # of torch, where it is to be told in which an influence enters

    def __init__(self, recorder: "Recorder", way_out: Exit, module: nn.Module) -> None:
        super().__init__(recorder)
        self.way_out, self.module = way_out, module
        self.output = 0
        self.returned: GivenRows | None = None
        self.given: list[tuple[str, int]] = []  # the function, and a fingerprint of its target
        self.rows: list[GivenRows] = []
        self._room = MOST_GIVEN
        self._values: list[float] = []
        self.loss = 0.0

    def take_over(self) -> None:
        """Become the recorder's only watcher."""
        self._began, self._streams = process_time(), read_streams_at()
        losses = self.recorder.watcher(LossFunctions)
        losses.listeners[:] = [self.on_loss]
        self.recorder.leave = self.leave
        self.recorder.tell_only(self)

    def leave(self, error: BaseException | None) -> NoReturn:
        """End the child where the training that it went on with is over."""
        self.way_out.give_up(tell_end(error))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take the fingerprint of what the module returned."""
        self.casts |= torch.is_autocast_enabled("cpu")
        if module is self.module and not self.output:
            tensors = list(tensors_in(output))
            self.output = fingerprint(tensors)
            if tensors:
                self.returned = GivenRows.of("", tensors[0], None, MOST_GIVEN)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down what a loss function was given."""
        if value.requires_grad and len(self.given) < _MOST_CALLS:
            self._values.append(total(value))
            self.given.append((tally.function, fingerprint([target])))
            rows = GivenRows.of(tally.function, scores, target, self._room)
            if rows is not None:
                self._room -= rows.scores.size
                self.rows.append(rows)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self.loss = total(loss)
        if self.noticed is not None:
            self.noticed.meet(loss)
        if loss.grad_fn is not None:
            self.sums = any(find_sums_with_constants(loss))
            self.noise = has_noise(loss)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report the step."""
        self.report_step()

    def report_step(self) -> NoReturn:
        """End the child with what it has seen."""
        self.sketches |= getattr(self.noticed, "compiled", False)
        self.casts |= getattr(self.noticed, "casts", False)
        pairs = [(p, gradient_of(p)) for p in self.module.parameters() if p.requires_grad]
        matrices = [gradient for p, gradient in pairs if p.dim() > 1]
        self.way_out.report(
            loss=self.loss,
            output=self.output,
            given=self.given,
            alone=self._values == [self.loss],
            rows=self.rows,
            returned=self.returned,
            samples=self.samples,
            streams=(streams := read_streams_at()),
            drawn=streams != self._streams,
            norms=[float(torch.linalg.vector_norm(gradient)) for gradient in self._held()],
            sketch=sketch(self._held()) if self.sketches or self.casts else None,
            casts=self.casts,
            compiled=getattr(self.noticed, "compiled", False),
            gradients=fingerprint(g for _, g in pairs if g is not None),
            idle=sum(g is None or not bool(g.any()) for g in matrices),
            rounding=_NARROW if self.casts else _rounding_of(self.module),
            work=process_time() - self._began,
            checkpoints=getattr(self.noticed, "checkpoints", 0),
            dropped=getattr(self.noticed, "dropped", 0.0),
            passed_by=getattr(self.noticed, "passed_by", False),
            cuts=getattr(self.noticed, "cuts", 0),
            bare=getattr(self.noticed, "bare", 0),
            sums=self.sums,
            noise=self.noise,
            results=self.results,
            follows=getattr(self, "follows", False),
            **self.more(),
        )

    def more(self) -> Report:
        """Return what else is to be reported."""
        return {}

    def _held(self) -> Iterator[torch.Tensor]:
        """Yield the gradients that optimizers of this run have, zeros where there is none."""
        known = {id(parameter) for parameter in self.recorder.names.parameters()}
        own = [window for window in self.recorder.windows if window.belongs_to(known)]
        for parameter in (p for window in own for p in window.parameters):
            gradient = gradient_of(parameter)
            yield torch.zeros(1).expand(parameter.numel()) if gradient is None else gradient


def find_changes(plain: Numbers, edited: Numbers, rounding: float) -> Flags:
    """Return which elements have changed by more than rounding."""
    finite = np.abs(plain[np.isfinite(plain)])
    with np.errstate(invalid="ignore"):
        changed: Flags = np.abs(edited - plain) > rounding * finite.max(initial=0.0)
    return changed


def total(loss: torch.Tensor) -> float:
    """Return the sum of what is handed to backward."""
    return float(loss.detach().double().sum())


def sketch(tensors: Iterable[torch.Tensor], *, keeps_norms: bool = True) -> Numbers:
    """Return some numbers of tensors in a row, as they are or with the norm that all have."""
    parts = [np.zeros(0)]
    for tensor in tensors:
        if tensor.layout != torch.strided:
            continue
        stride = max(1, -(-tensor.numel() // _MOST_SKETCHED))
        part = tensor.detach().reshape(-1)[::stride].double().cpu().numpy()
        parts.append(part * (math.sqrt(stride) if keeps_norms else 1.0))
    return np.concatenate(parts)


def _rows_of(tensor: torch.Tensor, stride: int) -> Numbers:
    """Return each so many numbers of the rows of a tensor."""
    rows = tensor.detach().reshape(len(tensor), -1)[:, ::stride]
    values: Numbers = rows.double().cpu().numpy().copy()
    return values


def read_streams_at() -> int:
    """Return a number that tells how far the random streams have come."""
    own = repr(hash(random.getstate())) + repr(np.random.get_state())
    return crc32(torch.default_generator.get_state().numpy().tobytes() + own.encode())


def _rounding_of(module: nn.Module) -> float:
    """Return the share of a loss that may be rounding, after a model's dtypes."""
    narrow = {torch.float16, torch.bfloat16}
    return _NARROW if narrow & {p.dtype for p in module.parameters()} else _ROUNDING


def tell_end(error: BaseException | None) -> str:
    """Say how a training ended that a child went on with, before there was an answer."""
    if error is None or isinstance(error, SystemExit):
        return "the training ended"
    if isinstance(error, AssertionError) and str(error) == _NO_WORKER:
        return "it needs a batch that no worker of its loader has brought yet"
    if isinstance(error, PermissionError) or os.strerror(errno.EACCES) in str(error):
        return "it writes a file, which a step that is only asked may not"
    return f"{type(error).__name__}: {error}"
