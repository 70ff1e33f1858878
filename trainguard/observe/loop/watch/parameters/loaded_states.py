"""Watches states that are taken of modules and loaded into them: whether loading does anything."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.discarded import name_unread
from trainguard.observe.tools.local_values import has_memory, is_sharded, local_values, start_of
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller, user_frames
from trainguard.observe.tools.written_calls import has_near, loads_own_state

_KEPT = 64  # states that somebody still has; more of them at once are hardly kept to be loaded
_MOST = 64  # findings of a run
_LINES, _STATES = 16, 512  # that take states, and steps after which each does
_TENSORS = 8  # by which a state is known
_ROUNDED = 1e-5  # of a value: what an average of equal numbers of 32 bits is off by, and more


@dataclass(slots=True)
class _TakenState:
    """
    What `state_dict()` returned: which tensors, from where, and how far the training was.

    version: of all tensors together. loads: how often the module had been loaded into.
    clock: how many states had been taken in the run.
    """

    tensors: "list[weakref.ref[torch.Tensor]]"
    version: int
    step: int
    loads: int
    source: str
    clock: int

    @property
    def is_alive(self) -> bool:
        """Whether somebody still has it; a look at the first tensor must do."""
        return bool(self.tensors) and self.tensors[0]() is not None

    @property
    def alive(self) -> list[torch.Tensor]:
        """The tensors that are still alive."""
        return [tensor for ref in self.tensors if (tensor := ref()) is not None]

    def ids(self) -> set[int]:
        """Return the ids of the tensors that are still alive."""
        return _ids({str(place): tensor for place, tensor in enumerate(self.alive)})


class LoadedStates(Watcher):
    """
    The Probe events "matched", "renamed", "restored", "one memory", "kept" and "left".

    The first are of loads that found none of the names, the second of loads that left out what the
    module has under a longer or shorter name, the third of loads of tensors that are the module's
    own: `measured` is 1 where they had moved since their state was taken, `reference` where a line
    takes the state of a module and loads it into the same. The fourth are of loads of one of many
    states that share their memory, or of what is made of them. "kept" tells
    of each line that took states after which steps, whether the line says that it is the best, and
    which was loaded (`measured`), when; "left"
    after which steps, of lines whose last state nothing was loaded after: `measured` is 1 where no
    line ever reads the variable that it is in.
    """

    makes = (
        "Probe:matched",
        "Probe:renamed",
        "Probe:restored",
        "Probe:one memory",
        "Probe:kept",
        "Probe:left",
    )

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._taken: list[_TakenState] = []
        self._loads: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._found: list[Probe] = []
        self._unmatched: list[tuple[weakref.ref[nn.Module], Probe]] = []
        self._clock = 0  # states that were taken
        self._vain: dict[str, int] = {}  # the step at which a line first loaded what it had taken
        # The last step at which the state of a module was taken, and the line.
        self._last: weakref.WeakKeyDictionary[nn.Module, tuple[int, str]] = (
            weakref.WeakKeyDictionary()
        )
        self._received: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._members: tuple[int, dict[int, str]] = (-1, {})  # loaded at a step: clocks, lines
        self._kept: dict[str, dict[int, tuple[float, ...]]] = {}  # numbers by step, by line
        self._loaded: dict[str, tuple[int, int]] = {}  # the step of the state, and of the load
        self._unread: dict[str, str] = {}  # the variable that a line keeps a state in for nothing
        self._latest = -1  # the clock of the state after which anything was loaded last
        self._clocks: dict[str, int] = {}  # of the last state of each line

    def install(self, patches: Patches) -> None:
        """Listen to what takes and loads states."""
        patches.replace(nn.Module, "state_dict", tell_after(self._see_taken))
        patches.replace(nn.Module, "load_state_dict", self._restores)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self._taken.clear()
        yield from (*self._found, *(probe for _, probe in self._unmatched))
        for source, kept in self._kept.items():
            self.looked.add("kept")
            step, loaded = self._loaded.get(source, (-1, -1))
            steps = " ".join(map(str, kept))
            label = steps + "\nbest" * has_near(source, "best")
            yield make_probe(
                "kept", step, loaded, step=self.recorder.steps, label=label, source=source
            )
            if self._clocks[source] > self._latest:
                unread = bool(self._unread[source])
                yield make_probe(
                    "left", unread, step=self.recorder.steps, label=steps, source=source
                )

    @shielded
    def _see_taken(self, state: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        """Remember what an outermost `state_dict` returned: inside, a destination is given."""
        if not args and not kwargs and self.recorder.patches.active:
            self._remember(module, state)

    @shielded
    def _remember(self, module: nn.Module, state: Any) -> None:
        """Remember a state that was taken of a module."""
        tensors = _tensors(state).values()
        refs, now = [weakref.ref(tensor) for tensor in tensors], self.recorder.steps
        loads, self._clock = self._loads.get(module, 0), self._clock + 1
        self._last[module] = now, caller()
        taken = _TakenState(refs, _version(tensors), now, loads, caller(), self._clock)
        self._taken = [*(one for one in self._taken if one.is_alive), taken][-_KEPT:]
        if taken.source in self._kept or len(self._kept) < _LINES:
            kept = self._kept.setdefault(taken.source, {})
            self._clocks[taken.source] = self._clock
            if taken.source not in self._unread:
                self._unread[taken.source] = next(
                    (name_unread(frame, "state_dict") for frame in user_frames(1)), ""
                )
            if len(kept) < _STATES:
                kept[now] = _numbers_of(module)

    def _restores(self, restore: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `Module.load_state_dict` that tells what it has done."""

        @wraps(restore)
        def wrapper(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            """Load the state, which may be given by its name."""
            state = args[0] if args else kwargs.get("state_dict")
            live = self.recorder.patches.active and self._is_live(module, state)
            if self.recorder.patches.active and not live:
                self._see_shared(module, state)
            result = restore(module, *args, **kwargs)
            if self.recorder.patches.active:
                self._look(module, state, result, bool(live))
            return result

        return wrapper

    @shielded
    def _is_live(self, module: nn.Module, state: Any) -> bool:
        """Say whether a module is to be loaded from its own memory; some have no address."""
        with suppress(Exception):
            return _is_live(module, state)
        return False

    @shielded
    def _see_shared(self, module: nn.Module, state: Any) -> None:
        """See whether a module is loaded with states of one memory, that were to differ."""
        given, since = _tensors(state), self._received.get(module, 0)
        self._received[module] = self._clock
        for group in _groups_of_one_memory(self._taken):
            member = next((one for one in group if _ids(given) <= one.ids()), None)
            if member is not None and given:
                self._see_member(module, member, group)
                continue
            own = {start_of(p) for p in module.parameters()}
            itself = start_of(group[0].alive[0]) in own
            fresh = [one for one in group if itself or one.clock > since]
            if len(fresh) > 1 and (gap := _gap(list(given.values()), group[-1].alive)) is not None:
                reset = not itself and len({one.loads for one in fresh}) == len(fresh)
                self._tell_shared(module, fresh, certain=reset or gap > 0)

    def _see_member(self, module: nn.Module, member: _TakenState, group: list[_TakenState]) -> None:
        """Tell of the second one of states of one memory that are loaded with no step between."""
        step, clocks = self._members
        loaded = clocks if step == self.recorder.steps else {}
        self._members = self.recorder.steps, loaded | {member.clock: member.source}
        pair = [one for one in group if one.clock in self._members[1]]
        if len({(one.step, one.version) for one in pair}) > 1:
            self._tell_shared(module, pair, certain=True)

    def _tell_shared(self, module: nn.Module, states: list[_TakenState], certain: bool) -> None:
        """Tell of states of one memory from which a module is loaded."""
        alike = (p for p in self._found if (p.probe, p.source) == ("one memory", states[0].source))
        if len(self._found) >= _MOST or any(probe.reference >= certain for probe in alike):
            return
        name, steps = self.recorder.names.module(module), [one.step for one in states]
        probe = Probe(
            probe="one memory",
            measured=float(len(states)),
            reference=float(certain),
            step=self.recorder.steps,
            label=f"{name}, states of steps {steps[0]} to {steps[-1]}",
            source=states[0].source,
        )
        self._found.append(probe)

    @shielded
    def _look(self, module: nn.Module, state: Any, result: Any, live: bool) -> None:
        """See what a load has found, and whether it could change anything."""
        self.looked |= {"matched", "restored"}
        self._latest = self._clock
        numbers = _numbers_of(module)
        for source, kept in self._kept.items():
            at = next((step for step, own in reversed(kept.items()) if own == numbers != ()), None)
            if at is not None:
                self._loaded[source] = at, self.recorder.steps
        if live:
            self._restore_live(module, state)
        self._loads[module] = self._loads.get(module, 0) + 1
        inside, now = {id(part) for part in module.modules()}, self.recorder.steps
        self._unmatched = [  # what is tried again is not told
            (ref, probe)
            for ref, probe in self._unmatched
            if probe.step != now or (other := ref()) is None or not _overlap(other, module, inside)
        ]
        unexpected = getattr(result, "unexpected_keys", ())
        missing = getattr(result, "missing_keys", ())
        if not (unexpected and missing) or len(self._unmatched) >= _MOST:
            return
        nothing = len(state) == len(unexpected)
        pairs = [] if nothing else list(_find_renamed(module, _tensors(state), unexpected, missing))
        if not (nothing or pairs):
            return
        own, theirs = pairs[0] if pairs else (missing[0], unexpected[0])
        probe = Probe(
            probe="matched" if nothing else "renamed",
            measured=float(len(pairs)),
            reference=float(len(unexpected)),
            step=now,
            label=f"{type(module).__name__} has `{own}`, the state `{theirs}`",
            source=caller(),
        )
        self._unmatched.append((weakref.ref(module), probe))

    def _restore_live(self, module: nn.Module, state: Any) -> None:
        """Tell of tensors that were loaded into themselves, and whether they had moved."""
        given = _ids(_tensors(state))
        taken = next((one for one in self._taken if given <= one.ids()), None)
        if len(self._found) >= _MOST:
            return
        if taken is None:
            self._restore_aliases(module)
            return
        moved = self.recorder.steps > taken.step or self._loads.get(module, 0) > taken.loads
        # Somebody may edit a state in place, and load it for good measure.
        if not moved and _version(_tensors(state).values()) != taken.version + len(given):
            return
        name = self.recorder.names.module(module)
        itself = any(map(loads_own_state, user_frames(1)))
        if not moved and taken.source == caller():  # a copy of another one, by its names
            itself |= self._vain.setdefault(taken.source, taken.step) < taken.step
        probe = Probe(
            probe="restored",
            measured=float(moved),
            reference=float(itself),
            step=self.recorder.steps,
            label=f"{name}, state of step {taken.step}",
            source=taken.source,
        )
        self._found.append(probe)

    def _restore_aliases(self, module: nn.Module) -> None:
        """Tell of others in the same memory, such as `value.detach().cpu()` of each."""
        step, source = self._last.get(module, (self.recorder.steps, ""))
        if self.recorder.steps > step:
            label = f"{self.recorder.names.module(module)}, state of step {step} or before"
            now = self.recorder.steps
            self._found.append(make_probe("restored", 1, step=now, label=label, source=source))


def _tensors(state: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a state by their names."""
    entries = dict(state) if isinstance(state, Mapping) else {}
    return {key: value for key, value in entries.items() if isinstance(value, torch.Tensor)}


def _ids(tensors: dict[str, torch.Tensor]) -> set[int]:
    """Return the ids of the tensors of a state."""
    return {id(tensor) for tensor in tensors.values()}


def _groups_of_one_memory(taken: list[_TakenState]) -> list[list[_TakenState]]:
    """Return states that one line took of one memory, between which it was written to in steps."""
    groups: dict[tuple[str, int], list[_TakenState]] = {}
    for one in taken:
        if one.is_alive and len(tensors := one.alive) == len(one.tensors):
            groups.setdefault((one.source, start_of(tensors[0])), []).append(one)
    return [
        group
        for group in groups.values()
        if len({one.step for one in group}) > 1 and len({one.version for one in group}) > 1
    ]


def _gap(given: list[torch.Tensor], own: list[torch.Tensor]) -> float | None:
    """Return how far numbers are apart that are equal but for rounding; None for others."""
    pairs = [pair for pair in zip(given, own, strict=False) if pair[1].is_floating_point()]
    if len(given) != len(own) or not pairs or any(not _may_be_one(*pair) for pair in pairs):
        return None
    gaps = [(one.detach() - other).abs() for one, other in pairs]
    bounds = [_ROUNDED * other.abs() for _, other in pairs]
    if any(bool((gap > bound).any()) for gap, bound in zip(gaps, bounds, strict=True)):
        return None
    return max(float(gap.max()) for gap in gaps)


def _may_be_one(given: torch.Tensor, own: torch.Tensor) -> bool:
    """Say whether two tensors may have the same numbers in different memory that can be read."""
    readable = given.device == own.device and has_memory(given) and bool(own.numel())
    if is_sharded(given) or is_sharded(own):  # to read them, all processes would have to take part
        return False
    return readable and given.shape == own.shape and start_of(given) != start_of(own)


def _numbers_of(module: nn.Module) -> tuple[float, ...]:
    """Return a number of each of the last parameters of a module, by which its state is known."""
    there = [p for p in module.parameters() if p.is_cpu and has_memory(p)]
    own = [v for p in there if (v := local_values(p)) is not None and v.numel()]
    return tuple(float(values.reshape(-1)[0]) for values in own[-_TENSORS:])


def _version(tensors: Iterable[torch.Tensor]) -> int:
    """Return how often tensors were written to, all together."""
    return sum(tensor._version for tensor in tensors)  # noqa: SLF001


def _is_live(module: nn.Module, state: Any) -> bool:
    """Say whether each parameter of a module is to be loaded from its own memory."""
    given = _tensors(state)
    if not given:
        return False
    own = {name: p for name, p in module.named_parameters() if p.numel()}
    return bool(own) and all(
        (found := given.get(name)) is not None and start_of(found) == start_of(p)
        for name, p in own.items()
    )


def _overlap(one: nn.Module, other: nn.Module, inside: set[int]) -> bool:
    """Say whether one of two modules is the other, or part of it; `inside`: parts of the second."""
    return id(one) in inside or any(part is other for part in one.modules())


def _find_renamed(
    module: nn.Module, given: dict[str, torch.Tensor], unexpected: list[str], missing: list[str]
) -> Iterator[tuple[str, str]]:
    """
    Yield a frozen parameter that was not loaded, and what the state has for it.

    A wrapper around a layer puts a word into its names: `q.weight` becomes `q.base.weight`. What is
    trained may have been left out on purpose, as a new head is; what is frozen stays as drawn.
    """
    own = dict(nn.Module.named_parameters(module))
    for name in missing:
        parameter = own.get(name)
        if parameter is None or parameter.requires_grad:
            continue
        alike = [key for key in unexpected if _is_longer(name, key) or _is_longer(key, name)]
        found = given.get(alike[0]) if len(alike) == 1 else None
        if found is None or found.shape != parameter.shape or not has_memory(parameter):
            continue
        if not torch.equal(found.to(parameter), parameter):
            yield name, alike[0]


def _is_longer(one: str, other: str) -> bool:
    """Say whether a name has all words of another in their order, and more, with the same end."""
    words, rest = one.split("."), iter(one.split("."))
    parts = other.split(".")
    return len(words) > len(parts) and words[-1] == parts[-1] and all(p in rest for p in parts)
