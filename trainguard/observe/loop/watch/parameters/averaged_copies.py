"""Watches copies of trained modules: whether they follow as an average does, and by which decay."""

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite, nan, sqrt
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.loop import Average
from trainguard.observe.loop.watch.watcher import (
    Columns,
    Watcher,
    make_probe,
    shielded,
    shielded_anywhere,
)
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.averaged_copies import AveragedCopy, Pair
from trainguard.observe.tools.heap import Holders, holders, search
from trainguard.observe.tools.local_values import start_of
from trainguard.observe.tools.patches import Patches, tell_before
from trainguard.observe.tools.user_line import caller

AVERAGES = frozenset(
    (
        *("ema", "average", "averaged", "averaging", "avg", "momentum", "polyak", "shadow"),
        *("smooth", "smoothed", "swa"),
        *("target", "teacher"),
    )
)
# Of what has a module's own tensors: a teacher may be the module itself.
_AVERAGED = AVERAGES - {"momentum", "target", "teacher"}
_TARGETS = frozenset(("target", "targ", "tgt"))  # which are there to be asked, and for no more
_PLAIN = frozenset(("module", "model", "net", "copy", "self", "value"))
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of names such as ema_model and ModelEMA
_FIRST = 2  # steps before copies are looked for
_OPTIMIZERS = 8  # whose second steps are a time to look: a search of the heap takes 0.1 s
_COPIES = 3  # times that it is looked for sooner, as modules were copied
_PATIENCE = 16  # looks after which a dict that never moved is let go
_DEEP, _WIDE = 5, 4096  # levels of what is saved, and parts of each
_APART = 16  # units in the last place: a pull of a twentieth still shows
_SOME = 0.05  # of the elements
_FINE = 1e-4  # of float32 and better, where a part that stays is left out and not rounded off
_ROUNDED = 64  # times the square of what rounding makes of it: a smaller move tells no decay


@dataclass(slots=True)
class _WatchedCopy:
    """
    A copy that is watched.

    window: of the optimizer that trains its module. wrappers: the modules around it.
    index: the steps that had been made at the last look. was: copies of what was seen there.
    waiting: the looks at a dict or list, until it moves: one that never does is no average.
    parts: ids of the modules in it. used: whether anything was made of it. alike: whether its
    module ever had its numbers, on an accelerator. taken: how often its state was, by which lines.
    instead: where the module was evaluated or saved.
    """

    copy: AveragedCopy
    name: str
    named: bool
    window: Window
    wrappers: "list[weakref.ref[nn.Module]]"
    index: int = -1
    paired: bool = False  # whether the last look is to be followed by one a step later
    was: list[Pair] = field(default_factory=list)
    moved: bool = False
    waiting: list[Average] = field(default_factory=list)
    parts: frozenset[int] = frozenset()
    used: bool = False
    alike: torch.Tensor | None = None
    taken: Counter[str] = field(default_factory=Counter)
    instead: str = ""

    def see_use(self) -> None:
        """See whether the module has the numbers of its copy; what cannot be compared is used."""
        entries = self.copy.entries()
        devices = {tensor.device for pair in entries for tensor in pair}
        if len(devices) != 1:
            self.used = True
        elif devices == {torch.device("cpu")}:
            first = [tensor.reshape(-1)[:1].tolist() for tensor in entries[0]]  # mostly enough
            self.used |= first[0] == first[1] and all(torch.equal(*p) for p in self.copy.pairs())
        else:  # nothing is waited for there, so that it is known at the end
            alike = torch.stack([(a == b).all() for a, b in self.copy.pairs()]).all()
            self.alike = alike if self.alike is None else self.alike | alike

    def is_in(self, loaded: list[torch.Tensor]) -> bool:
        """Say whether some tensors have its numbers; what cannot be compared may have them."""
        entries = self.copy.entries()
        if not entries:
            return False
        first = entries[0][1]
        alike = [each for each in loaded if each.shape == first.shape]
        here = first.is_cpu and all(each.is_cpu for each in alike)
        return bool(alike) and (not here or any(torch.equal(e.to(first), first) for e in alike))

    def is_used(self) -> bool:
        """Say whether anything was made of it, as far as that was seen."""
        return self.used or (self.alike is not None and bool(self.alike))


class AveragedCopies(Watcher):
    """
    The Average events, the Probe events "unused" and "unasked", the ids of all copies' parameters.

    An average is updated after the step of its optimizer, so it is looked at when the next backward
    begins: two looks that are one step apart tell its decay. It is used where it is called, saved,
    or stands in the place of its module in an evaluation.
    """

    makes = ("Average", "Probe:unused", "Probe:unasked")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.ids: set[int] = set()
        self._followed: list[_WatchedCopy] = []
        self._restored = 0  # how often modules were copied or loaded
        self._is_copied, self._left = False, _COPIES  # whether a module was copied since the step
        self._searched = (-1, -1)
        self._second = 0  # optimizers that have made their second step
        self._due = _FIRST  # the number of steps after which copies are looked for again

    def install(self, patches: Patches) -> None:
        """Listen to what makes copies (deepcopy, unpickling, load_state_dict) and what saves."""
        patches.replace(nn.Module, "__setstate__", tell_before(self._count_copied))
        patches.replace(nn.Module, "load_state_dict", tell_before(self._see_loading))
        patches.replace(nn.Module, "state_dict", tell_before(self._see_taking))
        patches.redirect(torch.save, tell_before(self._see_saving))

    def copies(self) -> list[tuple[str, AveragedCopy, bool]]:
        """Return the copies that are watched: name, copy, and whether it is called an average."""
        return [(one.name, one.copy, one.named) for one in self._followed]

    def moves(self) -> list[tuple[AveragedCopy, bool]]:
        """Return the copies that are watched, and whether each was seen to move."""
        return [(one.copy, one.moved) for one in self._followed]

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See whether what is evaluated is the module itself, or its copy put in its place."""
        for one in self._followed:
            if one.moved and not one.used:
                with torch.no_grad():
                    one.see_use()
                one.instead = caller(4)

    def finish(self) -> Iterable[Event]:
        """Return averages of which nothing was made, and target networks that were never called."""
        for one in self._followed:
            self.looked.add("unused")
            steps = self.recorder.steps
            called = one.copy.module is not None and one.parts & self.recorder.called
            seldom = any(2 * times < steps for times in one.taken.values())  # else by the update
            if one.moved and one.instead and not (one.is_used() or called or seldom):
                yield make_probe("unused", steps, label=one.name, source=one.instead)
            if one.copy.module is not None and one.moved and words(one.name) & _TARGETS:
                self.looked.add("unasked")
                around = {id(each()) for each in one.wrappers}  # what a compiler makes, for one
                if not called and not around & self.recorder.called:
                    yield make_probe("unasked", steps, label=one.name)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at each copy whose optimizer has stepped, where a look is due."""
        for one in self._followed:
            window = one.window
            if window.index != one.index and (window.is_surveyed or one.paired):
                with torch.no_grad():
                    self._look(one)

    def after_step(self, window: Window) -> Columns:
        """Look for copies after an optimizer's second step, and where some may have been made."""
        # Optimizers that were left in memory by an earlier training are none of this one's.
        own = sum(each.is_used for each in self.recorder.windows)
        made = self._restored, own
        due = self.recorder.steps + 1 >= self._due
        self._second += window.index + 1 == _FIRST
        sooner = self._is_copied and self._left > 0 and self._due > _FIRST
        self._is_copied, self._left = False, self._left - sooner
        if due or sooner or (window.index + 1 == _FIRST and self._second <= _OPTIMIZERS):
            if due:
                self._due = 10 if self._due == _FIRST else 4 * self._due
            if made != self._searched:
                self._searched = made
                with suppress(Exception):  # whatever somebody's objects do when they are looked at
                    self._search()
        if self._followed:
            self._followed = [one for one in self._followed if not one.copy.is_abandoned]
        return {}

    @shielded_anywhere
    def _see_loading(self, *args: Any, **kwargs: Any) -> None:
        """Count it, and take copies for used whose numbers are loaded into a module."""
        self._restored += 1
        if self.recorder.patches.active and self.recorder.thread.hears():
            given = args[1] if len(args) > 1 else kwargs.get("state_dict")
            waiting = [one for one in self._followed if not one.used]
            loaded = list(_tensors_below(given)) if waiting else []
            for one in waiting:
                one.used = one.is_in(loaded)

    @shielded_anywhere
    def _count_copied(self, *_: Any, **__: Any) -> None:
        """Count how often the state of a module is set, as where it is copied."""
        self._restored += 1
        self._is_copied = True

    @shielded
    def _see_taking(self, module: nn.Module, /, *_: Any, **kwargs: Any) -> None:
        """Note which lines take the state of copies; that of a part of it has a prefix."""
        if self._followed and self.recorder.patches.active and not kwargs.get("prefix"):
            self._see_taken(module)

    @shielded
    def _see_taken(self, module: nn.Module) -> None:
        """Count by which line the state of a copy is taken."""
        for one in self._followed:
            if id(module) in one.parts:
                one.taken[caller(4)] += 1

    @shielded
    def _see_saving(self, *args: Any, **kwargs: Any) -> None:
        """See whether what a `torch.save` saves has to do with a copy."""
        if self._followed and self.recorder.patches.active:
            self._see_saved(args[0] if args else kwargs.get("obj"))

    @shielded
    def _see_saved(self, saved: Any) -> None:
        """Take copies for used that are saved, or stand in the place of their module."""
        places = {start_of(tensor) for tensor in _tensors_below(saved)}
        for one in self._followed:
            inside = any(start_of(copy) in places for _, copy in one.copy.entries())
            one.used |= inside
            if not one.used:
                one.see_use()
            one.instead = one.instead or caller(4)

    def _search(self) -> None:
        """Look for copies of what the optimizers train, and for what they are called."""
        windows = self.recorder.windows
        held = {id(p): window for window in windows for p in window.parameters}
        known = [one.copy for one in self._followed]
        copies, modules = search(list(self.recorder.names.roots()), set(held), known)
        found = holders([copy.source for copy in copies], modules, set(held))
        for copy, held_by in zip(copies, found, strict=True):
            student = copy.follows.module()
            own = student.get_parameter(copy.follows.compared[0]) if student is not None else None
            named = _is_called_average(copy, held_by)
            # Without a name, what shares its memory may well be another view of the module.
            shown = copy.module is None and not words(*held_by.direct) & _AVERAGED
            if own is not None and (not copy.is_shared() or (named and not shown)):
                self.ids |= copy.ids
                name = self._name_copy(copy, held_by)
                one = _WatchedCopy(copy, name, named, held[id(own)], held_by.wrappers)
                kept = [copy.source] if copy.module is not None else []
                one.parts = frozenset(id(part) for whole in kept for part in whole.modules())
                self._followed.append(one)

    def _name_copy(self, copy: AveragedCopy, held_by: Holders) -> str:
        """Return what the user calls a copy; a name that was given already gets a number."""
        names = self.recorder.names
        pairs = list(zip(held_by.kinds, held_by.names, strict=True))
        telling = [pair for pair in pairs if words(*pair) & AVERAGES]
        others = [pair for pair in pairs if pair[1] not in _PLAIN and pair[1].isidentifier()]
        kind, name = next(iter([*telling, *others]), ("", ""))
        full = ".".join(part for part in (kind, name) if part)
        if full or copy.module is None:
            return str(names.unique(full or "dict of tensors"))
        student, kind = copy.follows.module(), type(copy.source).__name__
        known = str(names.module(copy.source))
        taken = student is None or known == names.module(student)
        return str(names.unique(kind)) if taken else known

    def _look(self, one: _WatchedCopy) -> None:
        """See how a copy and its module have moved since the last look."""
        pairs = one.copy.pairs() if _has_begun(one.wrappers) else []
        student = one.copy.follows.module()
        if pairs and len(one.was) == len(pairs) and student is not None:
            if one.copy.module is not None and not one.named:
                name = self.recorder.names.module(one.copy.source)
                if words(name) & AVERAGES:  # a module around both has been called since
                    one.name, one.named = str(self.recorder.names.unique(name)), True
            move = measure_move(one.was, pairs, single=one.window.index == one.index + 1)
            event = Average(
                name=one.name,
                step=one.window.index - 1,
                follows=self.recorder.names.module(student),
                shared=one.copy.is_shared(),
                named=one.named,
                **move,
            )
            self._tell(one, event)
        one.was = [(a.clone(), b.clone()) for a, b in pairs]
        one.paired, one.index = one.window.is_surveyed, one.window.index

    def _tell(self, one: _WatchedCopy, event: Average) -> None:
        """Keep a look; those at a dict or list wait until it moves, or it is let go."""
        one.moved |= event.moved
        one.waiting.append(event)
        if one.moved or one.copy.module is not None:
            for waiting in one.waiting:
                self.recorder.keep(waiting)
            one.waiting = []
        elif len(one.waiting) >= _PATIENCE:
            self._followed = [other for other in self._followed if other is not one]


def measure_move(was: list[Pair], now: list[Pair], *, single: bool) -> dict[str, Any]:
    """
    Return the fields of an Average that tell how a copy has moved, each pair a module and its copy.

    The decay is that which explains the move best, from the module as it is now or as it was
    before: an average may be updated on either side of the step. It is known after a single step
    only, and where the move is well above what rounding makes of it.
    """
    device = now[0][1].device
    before, before_copy, after, after_copy = (
        _join([pair[place] for pair in pairs], device) for pairs in (was, now) for place in (0, 1)
    )
    move = after_copy - before_copy
    toward, toward_before = after - before_copy, before - before_copy
    changed = [(a[1] != b[1]).any().to(move) for a, b in zip(was, now, strict=True)]
    products = [torch.stack(changed).sum(), move @ move, before_copy @ before_copy]
    products.append((after - before).abs().max())
    eps = torch.finfo(now[0][1].dtype).eps
    apart = toward.abs() > _APART * eps * before_copy.abs()
    products += [apart.sum(), (apart & (move == 0)).sum()]
    for way in (toward, toward_before):
        products += [way @ way, way @ move]
    moved, square, size, student, away, stayed, *ways = torch.stack(
        [product.to(move) for product in products]
    ).tolist()
    found: dict[str, Any] = {"moved": moved > 0, "student_moved": student != 0}
    if eps > _FINE and away >= _SOME * len(move):
        found["stayed"] = stayed / away
    noise = size * eps**2
    if not single or not isfinite(square) or square <= _ROUNDED * noise:
        return found
    best = min(_explain(square, noise, *ways[:2]), _explain(square, noise, *ways[2:]))
    return found | {"residual": best[0], "decay": best[1]}


def _explain(square: float, noise: float, way: float, along: float) -> tuple[float, float]:
    """Return what a pull along one way leaves of a move, as a share of it, and the decay."""
    if way <= 0:
        return 1.0, nan
    left = square - along * along / way
    return sqrt(max(0.0, left - noise) / square), 1 - along / way


def _tensors_below(saved: Any, depth: int = _DEEP) -> Iterator[torch.Tensor]:
    """Yield the tensors of what is saved: of modules, dicts and lists, and objects with such."""
    if isinstance(saved, torch.Tensor):
        yield saved
    elif isinstance(saved, nn.Module):
        yield from saved.parameters()
    elif depth:
        inside = saved if isinstance(saved, list | tuple) else getattr(saved, "__dict__", {})
        parts = saved if isinstance(saved, dict) else inside
        for part in islice(list(parts.values() if isinstance(parts, dict) else parts), _WIDE):
            yield from _tensors_below(part, depth - 1)


def _join(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return some vectors as one, in the precision that sums need."""
    precise = torch.float32 if device.type == "mps" else torch.float64
    return torch.cat([part.to(device=device, dtype=precise) for part in parts])


def words(*names: str) -> frozenset[str]:
    """Return the words that names are made of, in small letters: `ModelEMA` has model and ema."""
    return frozenset(word.lower() for name in names for word in _WORDS.findall(name))


def _is_called_average(copy: AveragedCopy, held_by: Holders) -> bool:
    """Say whether its class, what holds it or the name of that calls a copy an average."""
    kind = type(copy.source).__name__ if copy.module is not None else ""
    return bool(words(kind, *held_by.kinds, *held_by.names) & AVERAGES)


def _has_begun(wrappers: "list[weakref.ref[nn.Module]]") -> bool:
    """Say whether the wrappers of torch and ema_pytorch have begun; others always have."""
    names = ("n_averaged", "initted")
    marks = [getattr(wrapper(), name, None) for wrapper in wrappers for name in names]
    return all(bool(mark) for mark in marks if isinstance(mark, torch.Tensor))
