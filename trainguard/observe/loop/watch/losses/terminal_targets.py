"""Watches targets made of a reward and of what follows: whether that counts after an end, too."""

from collections.abc import Iterable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.named_numbers import REWARDS, find_numbers
from trainguard.observe.tools.owners import NEXT, named_tensors, words_in
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_LOOKS, _TRIES = 64, 8  # at targets with ends, and at steps without zeros and ones
_CALLS = 512  # looks in all: ends that have not come by then do not matter
_KNOWN = 64  # ends after which no more are looked for
_FEWEST, _MOST = 8, 4096  # rows of a batch
_WIDEST = 64  # actions, of which each has a value
_OUTPUTS, _CHOICES = 6, 32  # of passes in a step, and what may be picked of them
_TABLES = 12  # that may be a reward under another name
_LEAST = 4  # rows that go on, beside those that a share is fitted to
_SURE = {"terminal", "terminals", "terminated", "terminateds", "terminations", "nonterminal"}
_ENDS = {
    *("bd", "bdone", "crash", "crashed", "d", "dead", "died", "done", "dones", "ds"),
    *("end", "ended", "ends"),
    *("failed", "fallen", "fell", "final", "finals", "finished", "last", "lost", "over", "term"),
    "terms",
}
_ACTIONS = {"a", "act", "action", "actions", "acts", "ba"}
_MASKS = {"mask", "masks", "valid", "alive"}  # may be of ends, and of what is cut
_OPPOSITE = {"non", "not", "no", "nonterminal", "nonterminals", "notdone", "notdones", "undone"}
_CUT = {"cut", "cuts", "limit", "timeout", "timeouts", "trunc", "truncated", "truncations"}
_SHARES = {"discount", "discounts", "gammas"}  # for each row: they are zero at ends
_APART = {"int", "intrinsic", "bonus", "curiosity"}  # rewards that are meant to outlive episodes
_LOGARITHMS = {"logp", "logprob", "logprobs", "logpi", "log", "lp"}  # of an entropy bonus
_EXACT = 1e-4  # of a deviation: the rounding of float32
_DISCOUNTS = (0.3, 1 + _EXACT)

Named = list[tuple[str, Table]]


class TerminalTargets(Watcher):
    """
    The Probe event "ends bootstrapped": targets that are made of what follows the end of episodes.

    A target is known by its numbers: in all rows of a batch that go on it is their reward and one
    share of what a network has returned for what follows. measured: rows in which an episode ended
    of which that is true as well; reference: those, and the ones whose target is their reward;
    step: how many of the first surely are ends, and not cut by a limit of time: by their name, or
    by a reward that no other row has. The label is the name of what says so.
    """

    makes = ("Probe:ends bootstrapped",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._returned: list[Table] = []  # by networks, since the latest step
        self._step = self._judged = -1
        self._looks = self._strange = self._calls = 0
        self._passed = self._known = self._sure = 0
        self._name = self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of targets."""
        self.recorder.watcher(LossFunctions).listeners.append(self._take)

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the numbers that a network returns for a batch."""
        if is_transforming():
            return
        if self._step != self.recorder.steps:
            self._step, self._returned = self.recorder.steps, []
        for tensor in tensors_in(output):
            if len(self._returned) < _OUTPUTS and _is_batch(tensor):
                self._returned.append(np.array(array_of(tensor), np.float64))

    def _take(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Look at the target of a loss."""
        target = scores if target.requires_grad and not scores.requires_grad else target
        able = self._has_passes() and not target.requires_grad and _is_batch(target)
        if able and target.numel() == len(target):
            self._judge([np.array(array_of(target), np.float64).ravel()])

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for targets of losses by hand in the variables that are there."""
        if self._has_passes():
            for rows in {len(each) for each in self._returned}:
                self._judge([], rows)
        done = self._looks > _LOOKS or self._known > _KNOWN or self._calls > _CALLS
        if done or self._strange > _TRIES:
            self.recorder.dismiss(self)

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        self.looked |= {"ends bootstrapped"} if self._known else set()
        if self._passed:
            named = {"label": self._name, "step": self._sure, "source": self._source}
            yield make_probe("ends bootstrapped", self._passed, self._known, **named)

    def _has_passes(self) -> bool:
        """Say whether this step is looked at, nothing is known of it, and networks were asked."""
        step = self.recorder.steps
        return step == self._step != self._judged and bool(self._returned)

    def _judge(self, targets: list[Table], rows: int = 0) -> None:
        """Hold targets against the rewards, the ends and the values of the same rows."""
        rows = len(targets[0]) if targets else rows
        self._calls += 1
        named = _named_rows(rows)
        rewards = [table for name, table in named if _is_reward(name)]
        if targets and not any(words_in(name) & (REWARDS | _APART) for name, _ in named):
            rewards = [table for _, table in named[:_TABLES]]  # known by its numbers
        if not any(map(_is_flag, named)):
            self._strange += 1
        ends = _find_ends(named) if rewards else None
        if ends is None or any(words_in(name) & _SHARES for name, _ in named):
            return
        self._looks += 1
        targets = targets or [t for n, t in named if not words_in(n) & (REWARDS | _ENDS | NEXT)]
        follows = [*_pick([each for each in self._returned if len(each) == rows])]
        follows += [table for name, table in named if words_in(name) & NEXT]
        logarithms = [t for n, t in named if words_in(n) & _LOGARITHMS]
        called = words_in(ends[0]) & (_SURE | _ENDS)
        for target in targets:
            for reward in filter(np.any, rewards):
                if not called and np.array_equal(reward != 0, ends[1]):
                    continue  # it is the reward that is of zeros and ones
                seen = _see_ends(target - reward, ends[1], follows[:_CHOICES], logarithms)
                if seen is not None:
                    self._count(*seen, *ends, reward)
                    return

    def _count(self, passed: int, kept: int, name: str, ends: Any, reward: Table) -> None:
        """Count rows in which episodes ended, and those that nothing but an end explains."""
        self._judged = self.recorder.steps
        self._passed, self._known = self._passed + passed, self._known + passed + kept
        if passed:
            goes_on, last = reward[~ends], reward[ends]
            rare = int(((last < goes_on.min()) | (last > goes_on.max())).sum())
            rare = rare if words_in(name) & _ENDS else 0  # else nothing says that it is an end
            self._sure += passed if words_in(name) & _SURE else min(passed, rare)
            self._name, self._source = self._name or name, self._source or caller()


def _is_batch(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has a value, or one for each of a few actions, of each row."""
    able = tensor.is_cpu and tensor.is_floating_point() and tensor.layout == torch.strided
    if not able or tensor.is_nested or tensor.dtype is torch.bfloat16 or not 0 < tensor.dim() < 3:
        return False
    return _FEWEST <= len(tensor) <= _MOST and tensor.numel() <= _WIDEST * len(tensor)


def _named_rows(rows: int) -> Named:
    """Return what the variables of the running functions have of so many rows, by name."""
    named = [(name, table.ravel()) for name, table in find_numbers(rows, rows)]
    known = {name for name, _ in named}
    for _, name, tensor in named_tensors():  # those of named tuples are found here alone
        if name not in known and tensor.numel() == rows and tensor.is_cpu:
            named.append((name, np.array(array_of(tensor.detach().double())).ravel()))
    return [(name, table) for name, table in named if np.isfinite(table).all()]


def _is_reward(name: str) -> bool:
    """Say whether a name is that of a reward which ends with its episode."""
    return bool(words_in(name) & REWARDS) and not words_in(name) & _APART


def _is_flag(pair: tuple[str, Table]) -> bool:
    """Say whether a table is of zeros and ones, and is not called an action or a reward."""
    words = {word.rstrip("0123456789") for word in words_in(pair[0])}
    return not words & (_ACTIONS | REWARDS) and bool(np.isin(pair[1], (0.0, 1.0)).all())


def _find_ends(named: Named) -> tuple[str, Any] | None:
    """
    Return which rows end an episode, as far as it was not cut, and the name that says so.

    Where none has such a name, the only table of zeros and ones that is there says so.
    """
    flags = [pair for pair in named if _is_flag(pair)]
    cut = [table > 0 for name, table in flags if words_in(name) & _CUT]
    sure = [pair for pair in flags if words_in(pair[0]) & _SURE]
    sure = sure or [pair for pair in flags if words_in(pair[0]) & _ENDS]
    alone = len({table.tobytes() for _, table in flags}) == 1
    others = [] if sure or any(words_in(name) & _MASKS for name, _ in flags) else flags
    for name, table in sure or (others if alone else []):
        if not words_in(name) & _CUT:
            ends = (table == 0) if words_in(name) & _OPPOSITE else (table == 1)
            for own in cut:
                ends = ends & ~own
            return (name, ends) if 0 < 2 * ends.sum() <= len(ends) else None
    return None


def _pick(returned: list[Table]) -> Iterator[Table]:
    """Yield what may be taken of what networks have returned, a number for each row."""
    tables = [each for each in returned if each.ndim == 2 and each.shape[1] > 1]
    single = [each.ravel() for each in returned if each.ndim == 1 or each.shape[1] == 1]
    best = [each.max(1) for each in tables]
    for one, other in permutations(tables, 2):
        if one.shape == other.shape:
            best.append(np.take_along_axis(one, other.argmax(1)[:, None], 1).ravel())
    yield from single
    yield from best
    for some in (single, best):
        yield from (np.minimum(*pair) for pair in combinations(some, 2))


def _see_ends(
    rest: Table, ends: Any, follows: list[Table], logarithms: list[Table]
) -> tuple[int, int] | None:
    """
    Return at how many ends what is left of a target is a share of what follows, and nothing.

    None where it is no such share in the rows that go on, or something else at an end.
    """
    goes_on = ~ends
    spread = float(np.std(rest[goes_on]))
    if spread == 0:
        return None
    near = _EXACT * spread
    for extra in ([], *([each] for each in logarithms[:2])):
        for own in follows:
            columns = np.column_stack([own, *extra])
            share, *_ = np.linalg.lstsq(columns[goes_on], rest[goes_on], rcond=None)
            apart = np.abs(rest - columns @ share)
            low, high = _DISCOUNTS
            fits = low <= share[0] <= high and apart[goes_on].max() <= near
            if not fits or goes_on.sum() < _LEAST + len(share):
                continue
            passed = (apart <= near) & (np.abs(rest) > 10 * near) & ends
            kept = (np.abs(rest) <= near) & ends
            return (int(passed.sum()), int(kept.sum())) if (passed | kept)[ends].all() else None
    return None
