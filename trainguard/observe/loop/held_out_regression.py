"""
Whether an input says anything about its target: a small regression on examples, tested on others.

It is made once, at the end of a run whose model has learned nothing, and tells a model that cannot
learn from data that have nothing to teach.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import torch

from trainguard.observe.loop.reads import Ask, tell
from trainguard.observe.tools.arrays import array_of

MOST = 256  # examples
_LEAST = 64
_EACH = 32  # examples of one batch of a training, so that they come from several
_CALLS = 64
_FETCHED = (9, 17, 33)  # calls at which rows of an accelerator are asked for; and the end
_FEATURES = 1024
_OUTPUTS = 64
_HASHED = 512  # features that tokens are counted in
_FOLDS = 4
_PRIME = 7919  # decides which examples are held out: those of a period must not fall together
_RIDGES = (0.03, 1.0, 30.0)


@dataclass(slots=True)
class Examples:
    """
    Different rows of inputs with their targets, from the first batches of a run.

    each: how many of one batch at most; an evaluation may have a single one.
    """

    each: int = _EACH
    inputs: list[torch.Tensor] = field(default_factory=list)
    targets: list[torch.Tensor] = field(default_factory=list)
    count: int = 0
    calls: int = 0
    same: bool = True  # whether each target so far was the input itself
    _due: int = 1  # the next call that is looked at: one batch again and again has nothing new
    _known: set[int] = field(default_factory=set)
    _pending: list[torch.Tensor] = field(default_factory=list)
    ask: Ask = tell  # has tensors told that may be on an accelerator

    def add(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Remember rows of a batch that are not known yet."""
        self.calls += 1
        over = self.calls > _CALLS or len(self._known) >= MOST
        if over or self.calls < self._due or not _are_paired(inputs, targets):
            return
        rows = inputs.detach().reshape(len(inputs), -1)
        answers = targets.detach().reshape(len(targets), -1)
        comparable = rows.shape == answers.shape
        same = (rows == answers).all() if comparable else rows.new_zeros((), dtype=torch.bool)
        apart = -(-len(rows) // self.each)
        few = rows[::apart, :: -(-rows.shape[1] // _FEATURES)]
        # Copies, of what is not read now: a training may write its next batch to the same place.
        self._pending += [few.clone(), answers[::apart, :_OUTPUTS].clone(), same]
        if same.is_cpu or self.calls in _FETCHED:
            self.settle()

    def settle(self) -> None:
        """Ask for the rows that were put aside; several batches of an accelerator come at once."""
        pending, self._pending = self._pending, []
        self.ask(pending, self._take)

    def _take(self, tensors: list[torch.Tensor]) -> None:
        """Look at the rows that were put aside, and have come."""
        here, known = iter(tensors), len(self._known)
        for few, answers, same in zip(here, here, here, strict=True):
            self.same &= bool(same)
            keys = [hash(row.tobytes()) for row in array_of(few.contiguous().view(torch.uint8))]
            self.count += len(keys)
            for index, key in enumerate(keys):
                if key not in self._known and len(self._known) < MOST:
                    self._known.add(key)
                    self.inputs.append(few[index].clone())
                    self.targets.append(answers[index].clone())
        if len(self._known) == known:
            self._due = 2 * self.calls

    def explain(self) -> float:
        """Return the share of the variance of held-out targets that is explained, or nan."""
        try:
            self.settle()
            with torch.device("cpu"):  # where the rows are, whatever the user's default device is
                return _held_out_r2(self.inputs, self.targets)
        except Exception:  # noqa: BLE001 rows of different lengths, a matrix that is singular
            return nan

    def farther_than(self, others: "Examples") -> float:
        """Return how far these inputs are from others, in distances of those, or nan."""
        try:
            with torch.device("cpu"):
                return _times_farther(self.inputs, others.inputs)
        except Exception:  # noqa: BLE001 rows of different lengths
            return nan

    def describe(self) -> dict[str, Any]:
        """Return columns of a BaselineFit: how many examples there are, and what they teach."""
        learnable, deviation = self.explain(), nan
        with suppress(Exception), torch.device("cpu"):  # rows may be of different lengths
            deviation = _deviation(self.inputs)
        return {
            "examples": self.count,
            "inputs": len(self._known),
            "learnable": learnable,
            "deviation": deviation,
            "reconstructs": self.same and self.count > 0,
        }


def _are_paired(inputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Say whether two tensors are rows of inputs, and one target for each."""
    able = targets.dim() > 0 and inputs.dim() > 1 and inputs.layout == torch.strided
    return able and len(inputs) == len(targets) > 0 and inputs.numel() > 0 < targets.numel()


def _deviation(inputs: list[torch.Tensor]) -> float:
    """Return how far inputs differ, as the root mean square deviation of their numbers."""
    if len(inputs) < _LEAST or not inputs[0].is_floating_point():
        return nan
    return float(torch.stack(inputs).double().var(0).mean().sqrt())


def _held_out_r2(inputs: list[torch.Tensor], targets: list[torch.Tensor]) -> float:
    """Return the largest share of variance that some regression explains of what it never saw."""
    if len(inputs) < _LEAST:
        return nan
    order = sorted(range(len(inputs)), key=lambda index: index * _PRIME % len(inputs))
    features = _as_features(torch.stack([inputs[i] for i in order]))
    answers = _as_numbers(torch.stack([targets[i] for i in order]))
    kernels = _kernels(features) if features.shape[1] and answers.shape[1] else []
    return max((_test(k, answers, ridge) for k in kernels for ridge in _RIDGES), default=nan)


def _times_farther(inputs: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return how far inputs are from the nearest other, over how far these are from each other."""
    if min(len(inputs), len(others)) < _LEAST:
        return nan
    features = _as_features(torch.stack([*inputs, *others]))
    here, there = features[: len(inputs)], features[len(inputs) :]
    own = torch.cdist(there, there).fill_diagonal_(inf).amin(1).median()
    return float(torch.cdist(here, there).amin(1).median() / own)


def _as_features(rows: torch.Tensor) -> torch.Tensor:
    """Return columns of mean 0 and variance 1; tokens are counted, by themselves and by place."""
    if not rows.is_floating_point():
        places = torch.arange(rows.shape[1]) * _PRIME
        counts = torch.zeros(len(rows), 2 * _HASHED)
        counts.scatter_add_(1, rows.long() % _HASHED, torch.ones(rows.shape))
        counts.scatter_add_(1, _HASHED + (rows.long() + places) % _HASHED, torch.ones(rows.shape))
        rows = counts
    return _standardise(rows.double())


def _as_numbers(targets: torch.Tensor) -> torch.Tensor:
    """Return targets as columns of mean 0 and variance 1, one for each of a few classes."""
    if not targets.is_floating_point():
        values, counts = torch.unique(targets, return_counts=True)
        common = values[counts.argsort(descending=True)[:_OUTPUTS]]
        targets = (targets[:, :1] == common).double()
    return _standardise(targets.double())


def _standardise(rows: torch.Tensor) -> torch.Tensor:
    """Return the columns that vary, with mean 0 and variance 1."""
    rows = rows - rows.mean(0)
    spread = rows.std(0)
    kept = spread > 1e-9 * spread.max().clamp_min(1e-30)
    return rows[:, kept] / spread[kept]


def _kernels(features: torch.Tensor) -> list[torch.Tensor]:
    """Return how alike any two rows are, in a straight and in a local way."""
    distances = torch.cdist(features, features).square()
    typical = distances[distances > 0].median()
    return [features @ features.T / features.shape[1], (-distances / typical).exp()]


def _test(kernel: torch.Tensor, answers: torch.Tensor, ridge: float) -> float:
    """Return the share of variance that is explained of rows left out in turn."""
    count, error, total = len(kernel), 0.0, 0.0
    for fold in range(_FOLDS):
        held = torch.arange(count) % _FOLDS == fold
        mean = answers[~held].mean(0)
        own = kernel[~held][:, ~held] + ridge * torch.eye(int((~held).sum())).double()
        weights = torch.linalg.solve(own, answers[~held] - mean)
        guess = kernel[held][:, ~held] @ weights + mean
        error += float((guess - answers[held]).square().sum())
        total += float((answers[held] - mean).square().sum())
    return 1 - error / total if total else nan
