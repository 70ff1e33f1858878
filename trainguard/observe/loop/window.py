"""The Window of an optimizer: what happened since its last step, and the parameters it holds."""

import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from time import perf_counter
from typing import Any

import torch
from torch import nn

# The C getter: `.grad` itself is watched during a recording, and we are not the ones to be seen.
_BASE: Any = torch._C.TensorBase  # noqa: SLF001 no public name leads there
gradient_of: Callable[[torch.Tensor], torch.Tensor | None] = _BASE.grad.__get__
DENSE = 256  # steps of an optimizer that are watched densely; of later ones only some are
EVERY = 5 / 16  # of them: all of these are watched. More cost half of a step of 1.6 ms in them
FIFTH = 7  # one in so many of the rest: odd, so that what alternates comes in all its turns
_CLOSER = 32  # steps between two closer looks there, which are all watched
_PAUSES, _BRIEF = 4, 64  # times the longest pause, and steps beyond: then an optimizer has stopped
_MOST_LOSSES = 64
_MOST_WORDS = 64
_PARTS = 2  # of a module that was put to sleep by its own flag: one may be kept awake


@dataclass(slots=True)
class Forward:
    """
    One call of an outermost module.

    learned: whether a backward has reached its output since.
    shared: whether one has reached what it was given, which other modules have made.
    measured: what a loss function returned after it, where it builds a graph.
    keywords: the names of those of its inputs, the last ones, that were given by name.
    """

    module: str
    clock: int
    training: bool
    gradients: bool
    samples: int = 0
    step: int = 0
    source: str = ""
    asleep: tuple[str, ...] = ()
    awake: tuple[str, ...] = ()
    learned: bool = False
    shared: bool = False
    measured: Any = None
    keywords: tuple[str, ...] = ()


@dataclass(slots=True)
class Window:
    """
    What happened since an optimizer's last step; `optimizer` is None for steps made by hand.

    name: given at the first step, so that optimizers that never step do not take numbers.
    earlier: whether it was made before the recording. index: how many steps it has made since.
    before: the steps that it is looked at as if it had made them before: those of others, of which
        there were many. released: whether all of it was let go, since the optimizer is gone.
    is_surveyed: whether the step that ends it is looked at more closely than most.
    parameters: the trainable ones that it holds.
    received: how often each of them got a gradient in this window.
    fresh: whether none of them got one yet. reached: whether the latest backward gave any.
    forwards: the calls of outermost modules in this window, the first 64.
    arrived: what tells the gradients as the latest backward left them, or torch's own edit of them.
    edited: whether somebody else has changed them since, where it is looked for.
    accumulates: whether some step of its optimizer was made of several losses: there it is.
    returned: gradients that `torch.autograd.grad` returned and that are in no `.grad`.
    norms: the norm of each gradient at the step, in the order of `gradients()`.
    leftover: the norms that were there before the first backward, whose they were, and a mark of
        the tensor that one of them was in.
    clip: what clipping has done in this window. unscaled: whether a scaler has unscaled it.
    culprit: what was not finite first.
    on_edit: told where torch has clipped or unscaled the gradients.
    latest: how many steps all optimizers had made at its last one, before it when it was opened.
    pause: the most between two.
    """

    name: str = ""
    optimizer: "weakref.ref[torch.optim.Optimizer] | None" = None
    earlier: bool = False
    index: int = 0
    before: int = 0
    released: bool = False
    is_surveyed: bool = True
    parameters: list[torch.Tensor] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    fresh: bool = True
    reached: bool = False
    order: list[str] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    arrived: list[tuple[int, int]] = field(default_factory=list)
    edited: bool = False
    accumulates: bool = False
    returned: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    norms: torch.Tensor | None = None
    clip: Any = None
    unscaled: bool = False
    culprit: str = ""
    leftover: tuple[torch.Tensor, Callable[[list[float]], str], tuple[int, int]] | None = None
    source: str = ""
    on_edit: "Callable[[Window], None] | None" = None
    started: float = field(default_factory=perf_counter)
    latest: int = 0
    pause: int = 1

    @property
    def place(self) -> int:
        """The number of the step that ends it, by which it is chosen how closely that is seen."""
        return self.index + self.before

    @property
    def stride(self) -> int:
        """How many steps one stands for that is watched: ever more in a long run."""
        if self.place < DENSE:
            return next(n for n in range(1, _CLOSER + 1) if _is_watched(self.place + n))
        return _apart(self.place)

    @property
    def is_gone(self) -> bool:
        """Whether it was of an optimizer that has been deleted."""
        return self.optimizer is not None and self.optimizer() is None

    @property
    def is_watched(self) -> bool:
        """Whether the step that ends this window is recorded at all."""
        return _is_watched(self.place)

    @property
    def is_listened_to(self) -> bool:
        """Whether passes are told of in it; a step by hand is known only once the next begins."""
        return self.is_watched or (self.optimizer is None and _is_watched(self.place + 1))

    def has_stopped(self, steps: int) -> bool:
        """Say whether its optimizer has made no step for far longer than it ever paused before."""
        return steps - self.latest > _PAUSES * self.pause + _BRIEF

    def did(self, word: str) -> None:
        """Note that something was done, unless it was the last thing done."""
        if (not self.order or self.order[-1] != word) and len(self.order) < _MOST_WORDS:
            self.order.append(word)

    def edit(self, word: str, times: int = 1) -> None:
        """Note that torch has changed the gradients so often, and tell who waits for that."""
        self.did(word)
        self.see_edits(times)
        if self.on_edit is not None:
            self.on_edit(self)

    def add_loss(self, loss: Any) -> None:
        """Note a value that was handed to backward."""
        if len(self.losses) < _MOST_LOSSES:
            self.accumulates = self.accumulates or bool(self.losses)
            self.losses.append(loss)

    def hold(self) -> None:
        """Look up which parameters the optimizer holds; they may change from step to step."""
        optimizer = self.optimizer() if self.optimizer is not None else None
        if optimizer is None:
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if [*map(id, held)] != [*map(id, self.parameters)]:
            counts = {id(p): n for p, n in zip(self.parameters, self.received, strict=True)}
            self.parameters = held
            self.received = [counts.get(id(p), 0) for p in held]

    def mark(self) -> None:
        """Remember each gradient, so that it can be seen whether backward touched it."""
        self.see_edits()
        self.marks = self._mark_gradients()

    def see_edits(self, by_torch: int = 0) -> None:
        """See whether somebody changed what has arrived, more often than torch did."""
        if not self.accumulates or len(self.arrived) != len(self.parameters):
            return
        now = self._mark_gradients()
        for (known, version), (known_before, before) in zip(now, self.arrived, strict=True):
            is_same = known == known_before
            self.edited |= not is_same or version > before + by_torch
        self.arrived = now

    def _mark_gradients(self) -> list[tuple[int, int]]:
        """Return what tells the gradient of each parameter from another, and from what it was."""
        return [mark_gradient(p) for p in self.parameters]

    def count(self) -> bool:
        """Count which parameters got a gradient since `mark`; say whether any did."""
        self.arrived = self._mark_gradients()
        pairs = zip(self.arrived, self.marks, strict=True)
        new = [now != was and now != (0, 0) for now, was in pairs]
        arrived = True in new
        if arrived:  # in the same list: another one is that of another step
            self.received[:] = map(add, self.received, new)
        return arrived

    @property
    def is_used(self) -> bool:
        """Whether its optimizer was made in this run, or has stepped in it."""
        return bool(self.index) or not self.earlier

    def belongs_to(self, known: Container[int]) -> bool:
        """
        Say whether its optimizer is one of this run, and not left in memory by an earlier one.

        known: the identities of the parameters of this run's modules.
        """
        return self.is_used or any(id(parameter) in known for parameter in self.parameters)

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter that has a gradient, with it."""
        if self.returned:
            return self.returned
        return [(p, g) for p in self.parameters if (g := gradient_of(p)) is not None]

    def forget(self) -> None:
        """Drop what gradients came from that were cleared before a step could use them."""
        self.received, self.arrived = [0] * len(self.parameters), []
        self.fresh = True
        self.edited = False
        self.losses = []
        self.did("zero")

    def release(self) -> None:
        """Let go of all tensors: the optimizer is gone, and its model may have to go too."""
        if any(self.received):
            return  # what has arrived since its last step is still to be counted
        self.parameters, self.received, self.marks, self.arrived = [], [], [], []
        self.order, self.losses, self.forwards = [], [], []
        self.norms = self.leftover = self.clip = None
        self.released = True

    def close(self, steps: int) -> None:
        """Begin the window of the next step, after so many steps of all optimizers."""
        if self.index:
            self.pause = max(self.pause, steps - self.latest)
        self.latest = steps
        self.index += 1
        self.is_surveyed = is_looked_at_closer(self.place)
        self.received, self.arrived = [0] * len(self.parameters), []
        self.fresh = True
        self.order, self.losses, self.forwards = [], [], []
        self.norms = self.leftover = self.clip = None
        self.unscaled = self.edited = False
        self.culprit = ""
        self.started = perf_counter()


def _is_watched(index: int) -> bool:
    """Say whether a step is recorded, by its number."""
    if index >= DENSE:
        return index % _apart(index) == 0
    return index < EVERY * DENSE or index % _CLOSER % FIFTH == 0


def _apart(index: int) -> int:
    """Return how many steps apart those are that are watched late in a run."""
    return 16 if index < 16 * DENSE else 64


def is_looked_at_closer(index: int) -> bool:
    """Say whether a step is one of the few that are looked at more closely, by its number."""
    if index & 31:  # most often
        return index < 8 or not index & (index - 1)
    return index < DENSE or not index & 255 or not index & (index - 1)


def is_climbed(windows: Iterable[Window]) -> bool:
    """Say whether an optimizer makes its loss larger (maximize=True): all signs are turned then."""
    alive = (window.optimizer() for window in windows if window.optimizer is not None)
    groups = [group for each in alive if each is not None for group in each.param_groups]
    return any(group.get("maximize") for group in groups)


def trains(module: nn.Module) -> bool:
    """
    Say whether a module is in training mode, or all in it are while its own flag alone says no.

    One part that is awake as a whole may be so on purpose, as for Monte Carlo dropout.
    """
    if module.training or len(module._modules) < _PARTS:  # noqa: SLF001 children() takes longer
        return bool(module.training)
    parts = module.modules()
    next(parts)
    return all(part.training for part in parts)


def mark_gradient(parameter: torch.Tensor) -> tuple[int, int]:
    """Return what tells a gradient from another one, and from what it was."""
    given = gradient_of(parameter)
    return (0, 0) if given is None else (id(given), given._version)  # noqa: SLF001


def has_gradient(parameter: torch.Tensor) -> bool:
    """Say whether a parameter has a gradient that is not zero; sparse ones are taken to be so."""
    given = is_given(parameter)
    return given is not None and bool(given)


def is_given(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return, where a gradient is, whether it has anything but zeros; None where there is none."""
    if not (parameter.is_leaf or parameter.retains_grad):  # torch warns of who asks for it
        return None
    given = gradient_of(parameter)
    if given is None:
        return None
    return given.any() if given.layout == torch.strided else torch.ones((), dtype=torch.bool)


def count_alike(going: Sequence[Window]) -> int:
    """Return how many steps one stands for where some are watched; 1 where more are listened to."""
    stride = min((window.stride for window in going), default=1)
    by_hand = any(window.optimizer is None for window in going)
    return stride if stride <= FIFTH and not by_hand else 1
