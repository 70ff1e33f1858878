"""LossCalls adds up the calls of one loss function from one place of the user's code."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch

from trainguard.events.loop import Term
from trainguard.observe.loop.watch.losses.bounded_parts import what_is_left
from trainguard.observe.tools.arrays import number_in
from trainguard.observe.tools.told_lengths import find_lengths

CROSS_ENTROPIES = ("cross_entropy", "nll_loss")  # those that take the number of a class
LOGITS = "binary_cross_entropy_with_logits"  # each a class by itself
IGNORED = -100  # the target that they leave out, unless ignore_index is another
# What a function takes as its input, and the dimension of that in which the classes are.
CLASSES = {"cross_entropy": 1, "multi_margin_loss": 1, "nll_loss": 1, "kl_div": -1, "ctc_loss": -1}
LOGARITHMS = {"nll_loss", "kl_div", "ctc_loss"}
# Those whose targets are a probability, or the sign of a pair.
TARGETED = {
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "kl_div",
    "margin_ranking_loss",
    "multilabel_soft_margin_loss",
    "soft_margin_loss",
}
# Those that expand an input and a target of different shapes against each other.
EXPANDS = {
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
}
# Those that measure a distance, and between which numbers what a function returns lies.
DISTANCES = {"huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"}
BOUNDS = {
    "ReluBackward0": (0.0, inf),
    "SigmoidBackward0": (0.0, 1.0),
    "SoftmaxBackward0": (0.0, 1.0),
    "TanhBackward0": (-1.0, 1.0),
}
_SLACK = 0.05  # of one, or of the largest target: noise on targets at a bound
_TOLERANCE = 1e-4
_ABOVE = 1e-2  # log(p + epsilon) may lie a little above zero
_OFF, _EXACT = 0.1, 1e-3  # of the logarithm of the sum of probabilities
_MOST = 2**18  # elements that are looked at
_MOST_ROWS = 64
_IN_A_STEP = 8  # calls
_LOOKS_FOR_LENGTHS = 64  # calls of ctc_loss
_TABLE, _OF_ROWS = 2, 0.5  # dimensions of samples and classes; rows that mark several of these
MOST_TURNS = 8
Token = tuple["LossCalls", int]


@dataclass(slots=True, eq=False)
class LossCalls:
    """
    What a Term says, as far as it is known, and what it is still counted with.

    checked: the calls whose values were looked at. hits, above, heavy, crossed: those of them whose
        input was a distribution, had a value above zero, were logarithms of more than one in all,
        and of distributions over the samples; on an accelerator they are counted there.
    blanks: those whose targets have the blank of ctc_loss among them.
    several: those of soft targets that mark several classes at once in most of their rows.
    negative, nonfinite: calls that returned less than zero, or no finite number.
    low, high: the smallest and the largest target.
    beyond: the shares of targets that the input cannot reach, in the calls looked at, added up.
    viewed: the shape that the input had before it was viewed in its own; activation: as a Term's.
    reach: of calls of ctc_loss, the largest share of the steps in time that any length has; frames:
        how many steps in time their inputs have; rows, short: samples, and those with fewer steps
        in time than labels. padded: calls that read all steps of each, while a variable has their
        lengths; lengths: its name.
    options: the other arguments of the first call; None where they are too large to be kept.
    """

    function: str
    source: str
    evaluation: bool
    reduction: str
    input: tuple[int, ...]
    target: tuple[int, ...]
    calls: int = 0
    broadcasts: int = 0
    producer: str = ""
    checked: int = 0
    hits: Any = 0
    above: Any = 0
    heavy: Any = 0
    crossed: Any = 0
    blanks: Any = 0
    several: Any = 0
    negative: Any = 0
    nonfinite: Any = 0
    low: Any = inf
    high: Any = -inf
    beyond: Any = 0.0
    viewed: tuple[int, ...] = ()
    activation: str = ""
    reach: float = 0.0
    rows: int = 0
    short: int = 0
    padded: int = 0
    lengths: str = ""
    frames: set[int] = field(default_factory=set)
    shares: dict[int, list[float]] = field(default_factory=dict)
    step: int = -1
    left: int = _IN_A_STEP
    options: dict[str, Any] | None = None
    code: object = None  # held so that its id stays its own
    backward: int = -1
    turn: int = 0

    @property
    def ignored(self) -> int:
        """The target that is left out."""
        return int((self.options or {}).get("ignore_index", IGNORED))

    @property
    def last(self) -> str:
        """The function that made the input, or what was added to a constant."""
        return self.producer.rpartition(" ")[2]

    @property
    def is_given_logarithms(self) -> bool:
        """Whether the input is taken for the logarithm of a rate."""
        poisson = self.function == "poisson_nll_loss" and self.options is not None
        return poisson and bool((self.options or {}).get("log_input", True))

    def token(self, backward: int) -> Token:
        """
        Return what a call is recognised by: its place, and its turn there since a backward.

        A loop over the heads of a model calls one line for each of its terms.
        """
        if self.backward != backward:
            self.backward, self.turn = backward, -1
        self.turn = min(self.turn + 1, MOST_TURNS)
        return self, self.turn

    def wants(self, step: int, surveyed: bool) -> bool:
        """Say whether the values of this call should be looked at."""
        bounded = self.function in DISTANCES and self.last in BOUNDS
        if self.function not in CLASSES and self.function not in TARGETED and not bounded:
            return False
        if self.step != step:
            self.step, self.left = step, _IN_A_STEP
        self.left -= 1
        return self.calls <= _IN_A_STEP or (surveyed and self.left >= 0)

    def check(self, scores: torch.Tensor, target: Any) -> None:
        """Look at the values of one call: whether they are a distribution, or above zero."""
        self._check_target(scores, target)
        usable = scores.is_floating_point() and scores.numel() and not scores.is_sparse
        if self.function not in CLASSES or not usable:
            return
        with torch.no_grad():
            rows = sampled_rows(scores.detach(), CLASSES[self.function])
            self.checked += _as_count(rows.isfinite().any())  # a model that is lost says nothing
            if rows.shape[-1] > 1:
                self.hits += _as_count(are_distributions(rows, scores.dtype))
            if self.function == "ctc_loss" and isinstance(target, torch.Tensor):
                self.blanks += _as_count(_has_blank(target, (self.options or {}).get("blank", 0)))
            if self.function == "nll_loss":
                self.above += _as_count(_largest_chosen(scores.detach(), target) > _ABOVE)
            elif self.function in LOGARITHMS:
                self.above += _as_count(rows.max() > _ABOVE)
            if self.function in LOGARITHMS and rows.shape[-1] > 1:
                self.heavy += _as_count(rows.float().logsumexp(-1).min() > _OFF)
            if self.function in LOGARITHMS | {"cross_entropy"} and rows.shape[-1] > 1:
                self.crossed += _as_count(self._is_crossed(scores.detach(), target))

    def _check_target(self, scores: torch.Tensor, target: Any) -> None:
        """Look at the targets of one call."""
        if self.function == "cross_entropy":
            self.several += _as_count(_marks_several(scores, target))
        if self.function in TARGETED:
            self._look_at_target(target.detach())
        elif self.function in DISTANCES and not target.requires_grad:
            wanted = target if self.last == self.producer else what_is_left(scores, target)
            if wanted is not None:
                self.checked += 1
                self.beyond = self.beyond + _share_beyond(wanted, *BOUNDS[self.last])

    def add_value(self, value: torch.Tensor) -> None:
        """Count a loss that is below zero, or no finite number."""
        if value.is_cpu and value.numel() == 1:
            number = number_in(value)
            self.negative += number < -_TOLERANCE
            self.nonfinite += number - number != 0
        elif not value.dim():
            own = value.detach()
            self.negative = self.negative + (own < -_TOLERANCE)
            self.nonfinite = self.nonfinite + ~own.isfinite()

    def see_lengths(self, frames: int, lengths: Any, wanted: Any) -> None:
        """See which part of its input in time a call of ctc_loss reads, and for how much."""
        here = all(not isinstance(each, torch.Tensor) or each.is_cpu for each in (lengths, wanted))
        own = torch.as_tensor(lengths).flatten().tolist() if here else []
        longest = max(own, default=0) if here else frames
        self.reach = max(self.reach, longest / max(1, frames))
        if len(self.frames) < MOST_TURNS:
            self.frames.add(frames)
        pairs = list(
            zip(own, torch.as_tensor(wanted).flatten().tolist() if here else [], strict=False)
        )
        self.rows += len(pairs)
        self.short += sum(length < labels for length, labels in pairs)
        if pairs and min(own) == frames and self.calls < _LOOKS_FOR_LENGTHS:
            name = find_lengths(frames, [labels for _, labels in pairs])
            self.padded += bool(name)
            self.lengths = name or self.lengths

    def _is_crossed(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Say whether an input of logarithms, or a soft target, goes along another axis."""
        if scores.dim() < 2 or (scores.dim() == 2 and scores.shape[0] == scores.shape[1]):
            return torch.zeros((), dtype=torch.bool)  # tables of pairs are read both ways
        if not target.is_floating_point() and _are_surely_off(scores):
            return torch.zeros((), dtype=torch.bool)
        own = _off_along_axes(scores)
        if not target.is_floating_point() or target.shape != scores.shape:
            return _is_other(own, CLASSES[self.function])
        logs = target.detach()
        logs = logs if (self.options or {}).get("log_target") else logs.clamp_min(0).log()
        given = _off_along_axes(logs)
        if self.function != "kl_div":
            return _is_other(own, 1) | _is_other(given, 1)
        # Any axis may be that of the classes, but for that of the samples, if it is that of both.
        same = ((own <= _OFF) & (given <= _OFF)).any()
        apart = (own <= _EXACT).any() & (given <= _EXACT).any() & ~same
        return apart | _is_other(own, -1, (0,))

    def _look_at_target(self, target: torch.Tensor) -> None:
        """Widen the range of the targets."""
        if not target.numel() or (self.options or {}).get("log_target"):
            return
        low, high = (bound.float() for bound in target.aminmax())
        if target.is_cpu:
            self.low, self.high = min(self.low, low.tolist()), max(self.high, high.tolist())
        else:
            self.low = low.minimum(torch.as_tensor(self.low, device=low.device))
            self.high = high.maximum(torch.as_tensor(self.high, device=high.device))

    def terms(self) -> Iterator[Term]:
        """
        Yield the event, or one for each turn where the gradients of several were told apart.

        What was found in all calls that were looked at is said of all calls.
        """
        turns = max(1, len(self.shares))
        for shares in [self.shares[turn] for turn in sorted(self.shares)] or [[]]:
            yield Term(
                function=self.function,
                source=self.source,
                calls=self.calls // turns,
                reduction=self.reduction,
                input=self.input,
                target=self.target,
                broadcasts=self.broadcasts // turns,
                producer=self.producer,
                distributions=self._scale(int(self.hits)) // turns,
                positive=self._scale(int(self.above)) // turns,
                heavy=self._scale(int(self.heavy)) // turns,
                crossed=self._scale(int(self.crossed)) // turns,
                blanks=int(self.blanks) // turns,
                several=int(self.several) // turns,
                negative=int(self.negative) // turns,
                nonfinite=int(self.nonfinite) // turns,
                weighted=self.options is None or self.options.get("weight") is not None,
                range=(float(self.low), float(self.high)) if self.low <= self.high else (),
                shares=tuple(shares),
                evaluation=self.evaluation,
                beyond=float(self.beyond) / max(1, self.checked),
                viewed=self.viewed,
                reach=self.reach,
                frames=len(self.frames),
                padded=self.padded,
                lengths=self.lengths,
                short=self.short / max(1, self.rows),
                logarithm=self.is_given_logarithms,
                activation=self.activation,
            )

    def _scale(self, found: int) -> int:
        """Return all calls where all that were looked at had it, else those that were found."""
        return self.calls if self.checked and found == self.checked else found


def sampled_rows(scores: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return evenly chosen rows of scores, with the classes in the last dimension."""
    if scores.dim() < 2:
        return scores.reshape(1, -1)
    rows = scores.movedim(dimension, -1)
    wanted = max(2, min(_MOST_ROWS, _MOST // rows.shape[-1]))
    each = max(2, round(wanted ** (1 / (rows.dim() - 1))))
    steps = (slice(None, None, -(-size // each)) for size in rows.shape[:-1])
    return rows[tuple(steps)]


def are_distributions(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return whether every row lies in 0 to 1 and sums to one, as a tensor of one element."""
    tolerance = max(_TOLERANCE, torch.finfo(dtype).eps)
    wide = rows.float()
    if wide.is_cpu and not wide.min() >= 0:  # most often: the rest need not be computed
        return torch.zeros((), dtype=torch.bool)
    off = (wide.sum(-1) - 1).abs().max()
    return (wide.min() >= 0) & (wide.max() <= 1 + tolerance) & (off <= tolerance)


def _has_blank(target: torch.Tensor, blank: int) -> torch.Tensor:
    """Say whether a blank is among targets; at the end of a row it may be padding."""
    blanks = target == blank
    if target.dim() < 2:
        return blanks.any()
    return (blanks[:, :-1] & ~blanks[:, 1:]).any()


def _off_along_axes(logs: torch.Tensor) -> torch.Tensor:
    """Return for each axis how far logarithms are from those of distributions along it."""
    rows = (sampled_rows(logs, axis).float() for axis in range(logs.dim()))
    single = logs.new_full((), inf, dtype=torch.float32)  # what has one place says nothing
    sums = (r.logsumexp(-1).abs().max() if r.shape[-1] > 1 else single for r in rows)
    return torch.stack([*sums])


def _are_surely_off(logs: torch.Tensor) -> bool:
    """Say whether the first row along each axis shows that logarithms are of no distribution."""
    if not logs.is_cpu or not logs.numel():
        return False
    first = (0,) * (logs.dim() - 1)
    rows = (logs.movedim(axis, -1)[first].float() for axis in range(logs.dim()))
    sums = (abs(float(row.logsumexp(-1))) for row in rows if row.shape[0] > 1)
    return all(total > 2 * _EXACT for total in sums)


def _is_other(off: torch.Tensor, axis: int, others: tuple[int, ...] = ()) -> torch.Tensor:
    """Say whether what is far from distributions along an axis has them along another one."""
    found = off[list(others)] if others else off
    return (found.min() <= _EXACT) & (off[axis] > _OFF)


def _largest_chosen(logs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the largest of the log-probabilities that a target chooses."""
    if logs.dim() == 1:
        logs, target = logs[None], target.reshape(1)
    # A target that is ignored may be any number: an index out of range would end a CUDA process.
    inside = (target >= 0) & (target < logs.shape[1])
    chosen = logs.gather(1, target.clamp(0, logs.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return torch.where(inside, chosen, torch.zeros_like(chosen)).max()


def _share_beyond(target: torch.Tensor, low: float, high: float) -> Any:
    """Return the share of targets that lie outside of two bounds, but for some slack."""
    with torch.no_grad():
        slack = _SLACK * (1.0 if high < inf else target.abs().max())
        share = ((target < low - slack) | (target > high + slack)).float().mean()
        return share.tolist() if share.is_cpu else share


def _marks_several(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Say whether most rows of soft targets are zeros and several ones; not of tables of pairs."""
    marks = target.detach()
    if marks.dim() != _TABLE or marks.shape != scores.shape or marks.shape[0] == marks.shape[1]:
        return torch.zeros((), dtype=torch.bool)
    hard = ((marks == 0) | (marks == 1)).all()
    return hard & ((marks.sum(1) > 1).float().mean() > _OF_ROWS)


def is_broadcast(first: torch.Size, second: torch.Size) -> bool:
    """Say whether two shapes expand each other to one with more elements than either has."""
    try:
        both: torch.Size = torch.broadcast_shapes(first, second)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return both.numel() > max(first.numel(), second.numel())


def _as_count(flag: torch.Tensor) -> Any:
    """Return 0 or 1, on an accelerator as a tensor that is fetched at the end."""
    return int(flag) if flag.device.type == "cpu" else flag.detach().long()
