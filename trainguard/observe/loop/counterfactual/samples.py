"""A sample edited: whether what the loss is given for one sample depends on the others."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.influence import Kept, keep_rows_after_first
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
)
from trainguard.observe.loop.counterfactual.sample_axis import (
    count_rows,
    count_unordered,
    windows_of,
    with_rows,
)
from trainguard.observe.loop.counterfactual.witness import (
    Flags,
    GivenRows,
    Witness,
    find_changes,
)
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.models.future_probe import NEXT, token_shares
from trainguard.observe.loop.window import gradient_of
from trainguard.observe.tools.patches import tell_before

_UNKNOWN_AXIS = "it is not known which axis is that of the samples"
PERVASIVE = 0.9  # of the others: experts that are full, or a partner that is mixed in, move few
_LEAST_RUN = 5  # samples in a row that change ever less: what looks at neighbours moves fewer
_FADED = 0.01  # of the change of the next sample: that of the last one, which a recurrence forgets
_LONG_RUN, _STEADY = 12, 0.9  # samples; correlation of the logarithm of a change with its place
_FALLING = 0.75  # of its steps: what a sample forgets depends on the sample
_NEAR = 2  # columns that a table of all pairs may have more or fewer than samples


class SampleEdited(Question):
    """
    Every input of the first sample becomes that of another sample.

    measured: for how many of the other samples something else is handed to a loss function;
    reference: how many there are; numbers: whether the model's output has changed as much, whether
    the change fades from each sample to the next, as where a recurrence runs over the batch, and
    whether the rows are samples for sure. Void where the batch is normalised, where targets of
    others change too, or random numbers.
    """

    name = "a sample edited"
    asks = 2
    # Whether the latest answer said that nothing else has changed, or a few of the others.
    keeps_others = moves_few = False
    _drawn = _seems_drawn = False

    def fits(self, call: ModuleCall) -> str:
        """Ask where all inputs have a row for each of the samples."""
        rows, self._drawn = count_rows(call)
        self._seems_drawn = not rows
        rows = rows or count_unordered(call)
        if not rows or not _source_row(with_rows(call)):
            return ""
        return f"sample 0 of {rows}"

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Copy another sample to the place of the first one."""
        if not self.edits:
            return
        tensors = with_rows(call)
        other = _source_row(tensors)
        rest = [tensor[1:].clone() for tensor in tensors]
        with torch.no_grad():
            for tensor in tensors:
                tensor[0] = tensor[other].clone()
        if not all(map(torch.equal, rest, (tensor[1:] for tensor in tensors))):
            way_out.void("the samples share their memory")
        torch.batch_norm = refuse_statistics(torch.batch_norm, way_out)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks whether the model keeps statistics of its batches."""
        return RowsWitness(call, way_out)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count the other samples for which a loss function was given something else."""
        if plain["streams"] != edited["streams"]:
            return Contrast(void="the edit changed how many random numbers are drawn")
        if not plain["rows"]:
            given = plain["returned"], edited["returned"]
            alone = _compare_rows(*given, edited["samples"], plain["rounding"])
            self.keeps_others = alone is not None and not alone.others
            return Contrast(void="no loss function of torch was called")
        is_sure = self._drawn or edited["follows"]
        each = self._seems_drawn and all(_has_each(r, edited["samples"]) for r in plain["rows"])
        if not (is_sure or each):
            self.asks = 1  # nor will it be known later
            return Contrast(void=_UNKNOWN_AXIS)
        pairs = list(zip(plain["rows"], edited["rows"], strict=False))
        alike = len(plain["rows"]) == len(edited["rows"])
        if not alike or any(a.shape != b.shape or a.function != b.function for a, b in pairs):
            return Contrast(void="the edit changed the shapes of what is compared")
        rows = edited["samples"]
        found = [m for a, b in pairs if (m := _compare_rows(a, b, rows, plain["rounding"]))]
        if not found:
            return Contrast(void="no loss function is given a row for each sample")
        if any(moved.targets for moved in found):
            return Contrast(void="the edit changed the targets of other samples too")
        output = _compare_rows(plain["returned"], edited["returned"], rows, plain["rounding"])
        most = max(found, key=lambda moved: moved.others)
        self.keeps_others = not most.others
        self.moves_few = 0 < most.others < PERVASIVE * (rows - 1)
        inside = output is not None and output.others >= min(most.others, PERVASIVE * (rows - 1))
        numbers = (float(inside), float(most.fades), float(is_sure))
        return Contrast(float(most.others), float(rows - 1), numbers, smallest=most.first)

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether a change comes to the others."""
        return not self.is_settled(contrast)

    def kept(self, call: ModuleCall) -> Kept:
        """Leave out the first sample."""
        return keep_rows_after_first(count_rows(call)[0] or count_unordered(call))

    def is_settled(self, contrast: Contrast) -> bool:
        """Where the rest stays as it is, one answer is enough."""
        return contrast.measured < PERVASIVE * contrast.reference and not contrast.numbers[1]

    def state(self) -> dict[str, Any]:
        """Return what the question about their order asks of it, too."""
        own = {"keeps_others": self.keeps_others, "moves_few": self.moves_few}
        return {**super().state(), **own}


class RowsWitness(Witness):
    """
    Gives up where the model keeps statistics, in buffers or numbers: it mixes samples on purpose.

    follows: whether the targets are the next tokens of what the module is given, so that its first
    axis is that of the samples, and no row goes on with the one before.
    """

    def __init__(self, call: ModuleCall, way_out: Exit) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._call, self.follows = call, False
        self.samples = count_rows(call)[0] or count_unordered(call)

    def take_over(self) -> None:
        """Look at the buffers before the call, and at the tokens: the step may write to them."""
        self._before = list(self._statistics())
        self._tokens = [tensor.clone() for tensor in with_rows(self._call)]
        super().take_over()

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Look at what a loss function is to compare with."""
        super().on_loss(tally, scores, target, value)
        self.follows |= any(_is_followed(each, target) for each in self._tokens)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the gradients that are left of other losses."""
        super().before_backward(loss)
        self._left = self._gradients()

    def after_backward(self, loss: torch.Tensor) -> None:
        """Look at all of them again, and report."""
        if self._before != list(self._statistics()):
            self.way_out.void("the model keeps statistics of its batches")
        if any(old == new for old, new in zip(self._left, self._gradients(), strict=True)):
            self.way_out.void("a network learns that another one trains against")
        super().after_backward(loss)

    def _gradients(self) -> list[list[tuple[int, int]]]:
        """Return for each optimizer which gradients there are, and how often each was written."""
        return [
            [(id(g), g._version) for p in window.parameters if (g := gradient_of(p)) is not None]  # noqa: SLF001
            for window in windows_of(self.recorder)
        ]

    def _statistics(self) -> Iterator[tuple[int, float]]:
        """Yield which buffers of numbers there are, how often each was written to, and floats."""
        for part in self.module.modules():
            for buffer in part.buffers(recurse=False):
                if buffer.is_floating_point():
                    yield id(buffer), buffer._version  # noqa: SLF001
            yield from ((id(part), value) for value in vars(part).values() if type(value) is float)


def _is_followed(tokens: torch.Tensor, target: torch.Tensor) -> bool:
    """Say whether targets are the next tokens of rows, but for the first, that begin anew."""
    if target.numel() % len(tokens) or tokens.dim() != 2:
        return False
    rows = target.reshape(len(tokens), -1)
    goes_on = rows[:-1, -1] == tokens[1:, 0]
    return token_shares(tokens[1:], rows[1:])[0] >= NEXT and not bool(goes_on.all())


class _Moved(NamedTuple):
    """
    What has changed in one call of a loss function.

    others: samples besides the edited one; fades: whether they are the next ones, and change ever
    less; targets: whether a target of theirs is another one; first: the first change, in words.
    """

    others: int
    fades: bool
    targets: bool
    first: str


def _has_each(given: GivenRows, samples: int) -> bool:
    """Say whether a loss function is given a row for each sample, and one target, or sequence."""
    if given.targets is None or given.shape[0] != samples:
        return False
    return given.function == "ctc_loss" or given.targets.size == samples


def _source_row(tensors: list[torch.Tensor]) -> int:
    """Return the first row that is not like row 0 in all tensors; 0 where there is none."""
    rows = min(map(len, tensors))
    for other in range(1, rows):
        if any(not torch.equal(tensor[0], tensor[other]) for tensor in tensors):
            return other
    return 0


def refuse_statistics(original: Any, way_out: Exit) -> Any:
    """Return a `torch.batch_norm` that ends the child where it takes statistics of the batch."""

    def see(*args: Any, **kwargs: Any) -> None:
        """End where it does not normalise by running statistics alone."""
        if kwargs.get("training", args[5] if len(args) > 5 else True):
            way_out.void("the batch is normalised on purpose")

    return tell_before(see)(original)


def _compare_rows(
    plain: GivenRows | None, edited: GivenRows | None, samples: int, rounding: float
) -> _Moved | None:
    """Return what has changed, or nothing where rows are not those of samples."""
    if plain is None or edited is None or is_of_pairs(plain, samples):
        return None
    rows = len(plain.scores)
    if rows % samples or not rows or (rows > samples and len(plain.shape) < 2):
        return None
    changed = find_changes(plain.scores, edited.scores, rounding)
    # The rows of a sample follow each other, or stand a batch apart.
    of_sample = [np.arange(rows) // (rows // samples), np.arange(rows) % samples]
    counts = [len(set(owner[changed.any(1)].tolist()) - {0}) for owner in of_sample]
    owner = of_sample[int(np.argmin(counts))]
    targets = False
    if plain.targets is not None and edited.targets is not None:
        first, second = plain.targets[owner != 0], edited.targets[owner != 0]
        targets = not np.array_equal(first, second, equal_nan=True)
    changed[owner == 0] = False
    sizes = np.where(changed, np.abs(edited.scores - plain.scores), 0.0).max(1)
    fades = _fades_away([float(sizes[owner == sample].max()) for sample in range(1, samples)])
    return _Moved(min(counts), fades, targets, _first_change(plain, edited, changed, owner))


def _fades_away(changes: list[float]) -> bool:
    """Say whether changes go on from each sample to the next, and are ever smaller."""
    run = np.trim_zeros(np.array(changes), "b")
    if len(run) < _LEAST_RUN or not run.all():
        return False
    falls = np.mean(np.diff(run) < 0) >= _FALLING
    if not falls and len(run) >= _LONG_RUN:  # a maximum over places goes up now and then
        falls = np.corrcoef(np.arange(len(run)), np.log(run))[0, 1] <= -_STEADY
    return bool(run[-1] < _FADED * run[0] and falls)


def is_of_pairs(given: GivenRows, samples: int) -> bool:
    """Say whether there may be a column for each sample, as in a table of all pairs."""
    if samples in given.shape[1:] or given.shape[0] in given.shape[1:]:
        return True
    wide = given.shape[1] if len(given.shape) == 2 else 0
    off = min(wide % samples, -wide % samples)
    if wide < samples - _NEAR or off > _NEAR or given.targets is None:
        return False
    places = len(np.unique(given.targets))
    return places in (1, len(given.targets))


def _first_change(plain: GivenRows, edited: GivenRows, changed: Flags, owner: Flags) -> str:
    """Write down the first element that has changed."""
    if not changed.any():
        return ""
    row, column = np.argwhere(changed)[0]
    place = (row, *np.unravel_index(column * plain.stride, plain.shape[1:] or (1,)))
    where = ", ".join(str(int(index)) for index in place[: len(plain.shape)])
    return (
        f"with another sample 0, [{where}] of what {plain.function} is given (sample {owner[row]})"
        f" is {edited.scores[row, column]:.4g} instead of {plain.scores[row, column]:.4g}"
    )
