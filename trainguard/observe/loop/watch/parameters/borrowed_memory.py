"""Watches what steps, or is stepped by hand, in the memory of an optimizer's parameters."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import is_transforming, local_values, start_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_SAMPLED = 8  # parameters that are looked at, and elements of each
_MOST = 512  # optimizers that are looked at
_MOST_CALLS = 64  # of torch.autograd.grad, between two steps of the optimizer whose memory it is


@dataclass(slots=True, eq=False)
class _Hand:
    """A leaf that is stepped by hand, and the line that computed its gradient first."""

    leaf: "weakref.ref[torch.Tensor]"
    source: str


@dataclass(slots=True)
class _Borrowing:
    """
    What has been done in an optimizer's memory, by others, since its last step.

    lent: some of its parameters. borrowers: the optimizers, and the leaves, that are stepped there.
    was, left: elements of what is lent, before their first step and after the last one seen.
    anew: whether each was made since. calls: how many gradients were computed for steps by hand.
    """

    lent: "list[weakref.ref[torch.Tensor]]"
    was: list[torch.Tensor]
    borrowers: list[Window | _Hand] = field(default_factory=list)
    left: list[torch.Tensor] = field(default_factory=list)
    anew: bool = True
    calls: int = 0

    def stays(self) -> bool:
        """Say whether what was done is still there."""
        now = _sample(self.lent)
        if _are_equal(now, self.was):
            return False
        moved = self.calls > 0 and not _are_equal(self.left, self.was)
        return moved or _are_equal(now, self.left)  # the last step by hand was not seen


@dataclass(slots=True)
class _Found:
    """Steps of an optimizer from what borrowers left: in all, and those after an evaluation."""

    label: str
    source: str
    step: int
    steps: int = 0
    evaluated: int = 0
    several: int = 0  # of the evaluated ones, those with more than one borrower


class BorrowedMemory(Watcher):
    """
    The Probe event "borrowed": steps from what optimizers made for an evaluation have left.

    These hold tensors of their own, as `detach()` returns them, in the memory of parameters that
    another optimizer trains; or the leaves of such a kind, whose gradients `torch.autograd.grad`
    computes, are stepped by hand. What is put back before its next step does not count.
    """

    makes = ("Probe:borrowed",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._met = 0
        self._hands: list[_Hand] = []  # the leaves that were met
        # By the id of the window that borrows: of whom, and what.
        self._owners: dict[int, tuple[Window, list[weakref.ref[torch.Tensor]]]] = {}
        self._pending: dict[int, _Borrowing] = {}  # by the id of the owner
        self._found: dict[tuple[int, str], _Found] = {}

    def install(self, patches: Patches) -> None:
        """Learn of gradients that are computed for steps by hand."""
        patches.replace(torch.autograd, "grad", self._computing)

    def before_step(self, window: Window) -> Columns:
        """Look whose memory a new optimizer has, and what was left in that of an old one."""
        if not window.index and self._met < _MOST:
            self._meet(window)
        if id(window) in self._owners:
            owner, lent = self._owners[id(window)]
            pending = self._pending.get(id(owner)) or _Borrowing(lent, _sample(lent))
            self._pending[id(owner)] = pending
            pending.anew &= not window.index or window in pending.borrowers
            if window not in pending.borrowers:
                pending.borrowers.append(window)
        elif (left := self._pending.pop(id(window), None)) is not None:
            self._judge(window, left)
        return {}

    def after_step(self, window: Window) -> Columns:
        """Keep what a borrower leaves."""
        if id(window) in self._owners:
            pending = self._pending.get(id(self._owners[id(window)][0]))
            if pending is not None:
                pending.left = _sample(pending.lent)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for found in self._found.values():
            yield Probe(
                probe="borrowed",
                measured=float(found.several),
                reference=float(found.evaluated if found.evaluated == found.steps else 0),
                step=found.step,
                label=found.label,
                source=found.source,
            )

    def _meet(self, window: Window) -> None:
        """Look for the optimizer whose parameters lie where those of a new one do."""
        self._met += 1
        others = [o for o in self.recorder.windows if o is not window and o.index and o.optimizer]
        own = {id(p) for p in window.parameters}
        places = {start_of(p) for p in window.parameters[:_SAMPLED] if p.numel()}
        for other in others:
            if id(other) in self._owners or other.is_gone:
                continue
            self.looked.add("borrowed")
            lent = [p for p in other.parameters if start_of(p) in places]
            if lent and not any(id(p) in own for p in other.parameters):
                self._owners[id(window)] = other, [weakref.ref(p) for p in lent[:_SAMPLED]]
                return

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.autograd.grad` that looks in whose memory the leaves are."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(outputs: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            """Do what the original does."""
            away = compiling() or is_transforming()  # leaves have no memory there
            live = self.recorder.patches.live  # else nobody would know of evaluations in between
            if live and not away and isinstance(inputs, tuple | list):
                self._see(inputs)
            return original(outputs, inputs, *args, **named)

        return wrapper

    @shielded
    def _see(self, inputs: "tuple[Any, ...] | list[Any]") -> None:
        """Look for an optimizer in whose memory a leaf lies that it does not hold."""
        leaf = inputs[0] if inputs and isinstance(inputs[0], torch.Tensor) else None
        if leaf is None or not leaf.is_leaf or not leaf.numel():
            return
        for owner in [w for w in self.recorder.windows if w.index and w.optimizer]:
            if owner.is_gone or any(p is leaf for p in owner.parameters):
                continue
            self.looked.add("borrowed")
            place = start_of(leaf)
            lent = [p for p in owner.parameters if start_of(p) == place and p.shape == leaf.shape]
            if lent:
                self._lend(owner, leaf, lent)
                return

    def _lend(self, owner: Window, leaf: torch.Tensor, lent: list[torch.Tensor]) -> None:
        """Take down that a leaf in an optimizer's memory is about to get a gradient."""
        pending = self._pending.get(id(owner))
        if pending is None:
            refs = [weakref.ref(p) for p in lent]
            pending = self._pending[id(owner)] = _Borrowing(refs, _sample(refs))
        pending.calls += 1
        if pending.calls > _MOST_CALLS:
            return
        pending.left = _sample(pending.lent)
        hand = next((hand for hand in self._hands if hand.leaf() is leaf), None)
        pending.anew &= hand is None or hand in pending.borrowers
        if hand is None:
            hand = _Hand(weakref.ref(leaf), caller())
            self._hands = [*(each for each in self._hands if each.leaf() is not None), hand]
            pending.borrowers.append(hand)

    def _judge(self, owner: Window, left: _Borrowing) -> None:
        """Count a step that is about to be made from what borrowers left."""
        lent = left.lent[0]()
        if not left.anew or lent is None or not left.stays():
            return
        source, name = left.borrowers[-1].source, self.recorder.names.parameter(lent)
        new = _Found(name, source, self.recorder.steps)
        found = self._found.setdefault((id(owner), source), new)
        evaluated = "evaluate" in owner.order
        found.steps += 1
        found.evaluated += evaluated
        found.several += evaluated and len(left.borrowers) > 1


def _sample(lent: "list[weakref.ref[torch.Tensor]]") -> list[torch.Tensor]:
    """Return copies of some elements of parameters."""
    values = [local_values(p) for ref in lent if (p := ref()) is not None]
    return [one.reshape(-1)[:_SAMPLED].clone() for one in values if one is not None]


def _are_equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Say whether samples are the same."""
    return len(ones) == len(others) and all(map(torch.equal, ones, others))
