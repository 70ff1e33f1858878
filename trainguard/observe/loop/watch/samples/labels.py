"""Watches inputs and their targets: labels that change, and targets that stand in the input."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches

_KEPT = 2048  # rows of inputs whose label is remembered
_ROWS = 8192  # rows that are looked at
_NOISE = 0.75  # of the changes that chance alone would make: more is no noise in the labels
_REPEATED = 32  # rows that must have come again before anything is said
_BATCHES = 8  # batches whose columns are compared with the target
_LEAST_BATCHES, _LEAST_ROWS = 3, 32
_WIDEST = 2**20  # elements of such a batch
_FORETOLD = 0.5  # correlation with another place: neighbours in series and images have more
_SERIES = 64  # in a window, with each of which a target is compared
_CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss")


@dataclass(slots=True)
class _LabelledRow:
    """
    A row of an input: the label it came with last, and in which pass through the loader.

    ambiguous: whether it came with several labels in one pass, as it does in some data.
    """

    label: int
    turn: int
    repeated: int = 0
    changed: int = 0
    ambiguous: bool = False


@dataclass(slots=True)
class _Columns:
    """
    The columns of an input, or places in its rows, that have equalled the target so far.

    width: how many places the target has, each of which equals its own.
    """

    batches: int = 0
    width: int = 1
    rows: int = 0
    equal: set[int] = field(default_factory=set)
    source: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to be found."""
        return self.batches >= _BATCHES or (self.batches > 0 and not self.equal)


class Labels(Watcher):
    """
    The Probe events "labels" and "target".

    Labels are those of a loader that serves an input and its class, where the model gets that very
    input and a loss function that very class. Targets are those that a loss function gets, or that
    a loader serves with the input of a pass.
    """

    makes = ("Probe:labels", "Probe:target")
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._rows: dict[int, _LabelledRow] = {}
        self._left = _ROWS
        self._source = ""  # of the labels
        self._first = 0  # the first pass through a loader that was looked at
        self._number = 0  # of the batch whose rows were looked at last
        self._columns: dict[str, _Columns] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(self, forward: Forward, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Compare the columns of an input with the target that its loader served with it."""
        columns = self._columns.get("")
        if not forward.gradients or (columns is not None and columns.is_done):
            return
        given = self._latest_input()
        served = self._batches.origin(given) if given is not None else None
        if given is not None and served is not None and served.paired:
            for target in served.alive()[1:]:
                self._compare("", given, target)

    def finish(self) -> Iterator[Event]:
        """Return what was found."""
        rows = [row for row in self._rows.values() if not row.ambiguous]
        repeated, changed = sum(r.repeated for r in rows), sum(r.changed for r in rows)
        self.looked |= {"labels"} if repeated >= _REPEATED else set()
        self.looked |= {"target"} if any(c.batches for c in self._columns.values()) else set()
        if repeated >= _REPEATED and changed:
            yield Probe(
                probe="labels",
                measured=changed / repeated,
                reference=_NOISE * _by_chance([row.label for row in rows]),
                label=f"{repeated} rows that came again",
                source=self._source,
            )
        found = [
            columns
            for columns in self._columns.values()
            if columns.equal and columns.batches >= _LEAST_BATCHES and columns.rows >= _LEAST_ROWS
        ]
        for columns in found[:1]:
            last = f" to {min(columns.equal) + columns.width - 1}" if columns.width > 1 else ""
            label = f"column {min(columns.equal)}{last} of the input"
            yield make_probe("target", 1.0, 1.0, label=label, source=columns.source)

    def _latest_input(self) -> torch.Tensor | None:
        """Return the input of the latest pass that may learn, if it is still there."""
        ref = self._batches.given
        latest = ref() if ref is not None else None
        return None if latest is None else self._batches.on_host(latest)

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Look at the target of a loss function, and at the input that it belongs to."""
        given = self._latest_input()
        if given is None or not value.requires_grad:
            return
        target = self._batches.on_host(target)
        self._compare(tally.source, given, target)
        if tally.function in _CLASSES and self._left > 0:
            served = self._batches.origin(target)
            if served is not None and served.number != self._number and served.has(given):
                self._number = served.number
                self._source = self._source or tally.source
                self._look_at_rows(served)

    def _look_at_rows(self, served: ServedBatch) -> None:
        """See which rows of a batch came before, and with which label."""
        full = len(self._rows) >= _KEPT
        self._first = self._first or served.turn
        alive = (
            served.alive() if served.paired and not (full and served.turn == self._first) else []
        )
        if len(alive) != 2 or not _are_classes(*alive):
            return
        # Where each pass ends with its first batch, a row that has several labels is not known.
        counts = served.batches == 1 or served.number != served.turn
        inputs, labels = alive
        for row, label in zip(hash_rows(inputs), labels.tolist(), strict=True):
            known = self._rows.get(row)
            if known is None:
                if len(self._rows) < _KEPT:
                    self._rows[row] = _LabelledRow(label, served.turn)
            elif known.turn == served.turn:
                known.ambiguous |= known.label != label
            else:
                known.repeated += counts
                known.changed += counts and known.label != label
                known.label, known.turn = label, served.turn
        self._left -= len(inputs)

    def _compare(self, source: str, inputs: torch.Tensor, target: Any) -> None:
        """Compare each column of an input with a target, in the first few batches."""
        columns = self._columns.setdefault(source, _Columns(source=source))
        if columns.is_done or not self.recorder.probe or not has_rows(inputs):
            return
        if not _have_columns(inputs, target):
            if _are_windows(inputs, target):
                self._compare_ends(columns, inputs.detach(), target.detach())
            return
        flat = target.detach().reshape(-1, 1).to(inputs.dtype)
        if not bool((flat != flat[0]).any()):
            return
        rows = inputs.detach().reshape(len(inputs), -1)
        same = (rows == flat).all(0)
        equal = set(same.nonzero().flatten().tolist())
        # A number that is in one place alone may be asked for on purpose, as a test of memory.
        if equal and inputs.dim() > 2 and not _is_foretold(rows[:, ~same], flat):
            equal = set()
        columns.equal = equal & columns.equal if columns.batches else equal
        columns.batches += 1
        columns.rows += len(flat)

    def _compare_ends(self, columns: _Columns, inputs: torch.Tensor, target: torch.Tensor) -> None:
        """Compare the last places of windows with a target of several, as in forecasts."""
        rows, several = len(target), target.shape[1]
        flat = target.reshape(rows, several, -1)
        # What a loader serves may begin earlier than what is learned, and be cut off.
        overlaps = (several, *range(1, several - 1)) if columns.source else (several,)
        found: dict[int, int] = {}  # how many places of the target, by where they begin
        for windows in _series_of(inputs, flat):
            begins = (windows == flat[:, :1]).all(2).all(0).nonzero().flatten().tolist()
            for begin, shared in ((begin, windows.shape[1] - begin) for begin in begins):
                same = shared in overlaps and torch.equal(windows[:, begin:], flat[:, :shared])
                if same and _is_expected(windows[:, max(0, begin - several) : begin], flat):
                    found.setdefault(begin, shared)
        columns.equal = {*found} & columns.equal if columns.batches else {*found}
        columns.width = found[min(columns.equal)] if columns.equal else several
        columns.batches += 1
        columns.rows += rows


def _is_expected(before: torch.Tensor, target: torch.Tensor) -> bool:
    """Say whether a target goes on as before: else it may be asked for on purpose."""
    goal = target[:, 0, :1]
    return bool((goal != goal[0]).any()) and _is_foretold(before.flatten(1), goal)


def _series_of(inputs: torch.Tensor, target: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the series of (N, T, K) in windows that a target of (N, H, K) may be the end of."""
    longest = 2 * target.shape[1]  # more is what is restored, and not foretold
    ways = [inputs[..., None]] if inputs.dim() == 2 else [inputs, inputs.transpose(1, 2)]
    for windows in ways:
        if windows.shape[1] < longest:
            continue
        if windows.shape[2] == target.shape[2]:
            yield windows
        elif target.shape[2] == 1 and windows.shape[2] <= _SERIES:
            yield from torch.split(windows, 1, dim=2)


def _by_chance(labels: list[int]) -> float:
    """Return how often two of the labels differ, each drawn by chance: 0.5 for two even classes."""
    counts = Counter(labels).values()
    return 1 - sum((count / len(labels)) ** 2 for count in counts)


def _are_classes(inputs: torch.Tensor, labels: torch.Tensor) -> bool:
    """Say whether these are rows on the CPU, and one class for each."""
    integral = not (labels.is_floating_point() or labels.is_complex())
    on_cpu = inputs.device.type == labels.device.type == "cpu"
    rows = inputs.dim() > 1 and inputs.numel() > 0 and inputs.layout == torch.strided
    return integral and on_cpu and rows and labels.shape == inputs.shape[:1]


def _is_foretold(columns: torch.Tensor, target: torch.Tensor) -> bool:
    """Say whether a column of (N, K) goes with a target (N, 1), as what is around it does."""
    centred, goal = columns - columns.mean(0), target - target.mean()
    sizes = centred.norm(dim=0) * goal.norm()
    return bool(((centred * goal).sum(0).abs() > _FORETOLD * sizes).any())


def _have_columns(inputs: torch.Tensor, target: Any) -> bool:
    """Say whether an input has several numbers in each row, and the target one."""
    if not isinstance(target, torch.Tensor) or not inputs.is_floating_point():
        return False
    if inputs.dim() < 2 or inputs.is_nested or inputs.layout != torch.strided:
        return False
    if inputs.device != target.device:
        return False
    return (
        len(inputs) > 1
        and inputs.numel() > len(inputs)
        and inputs.numel() <= _WIDEST
        and target.shape in (inputs.shape[:1], (inputs.shape[0], 1))
    )


def _are_windows(inputs: torch.Tensor, target: Any) -> bool:
    """Say whether an input may be windows of series, and the target several numbers of each."""
    if not isinstance(target, torch.Tensor) or not inputs.is_floating_point():
        return False
    if inputs.is_nested or inputs.layout != torch.strided or inputs.numel() > _WIDEST:
        return False
    shapes = inputs.dim() in (2, 3) and target.dim() in (2, 3) and target.dtype == inputs.dtype
    rows = shapes and len(inputs) == len(target) > 1 and target.device == inputs.device
    return rows and target.shape[1] > 1 and not target.requires_grad
