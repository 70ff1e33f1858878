"""Watches seeds that are set in the course of a training: whether its random numbers come back."""

import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, foreign

_PART = 256  # bytes of torch's state: its place in a block of numbers, and the first of the block
_MOST = 65536  # draws that are told apart
_FOLLOWED = 4  # steps after each seed: one may draw nothing, and longer ones cost time
Draw = tuple[str, int, int]  # the generator, its state before and after
Path = tuple[tuple[int, ...], ...]  # the optimizers that step, and states of a generator at steps


class RandomNumbers(Watcher):
    """
    The Probe event "random": steps made with random numbers that an earlier step was made with.

    Nothing is looked at until somebody sets a seed after the first step. From then on the states of
    the generators that were seeded are looked at after each pass that may learn and at each step:
    where the same state changes into the same other state again, the same numbers were drawn.
    What is drawn around evaluations, and for the order of an epoch, is not counted. Nor is a
    generator that one line seeds by several numbers: data may be drawn by their index.

    The Probe event "random epochs": epochs that begin with the draws of an earlier one, by a
    generator that was seeded right before a pass that learns nothing, as in an evaluation.

    The Probe event "random rewinds": seeds after which the next steps drew what they drew after an
    earlier one. Of long runs few steps are watched: the states at the last backward before each of
    the steps that follow a seed tell what they drew, watched or not.
    """

    makes = ("Probe:random", "Probe:random epochs", "Probe:random rewinds")
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.seeded: set[str] = set()  # generators that a line of the user's own has seeded last
        self._states: dict[str, int | None] = {}  # of each generator that was seeded
        self._sources: dict[str, str] = {}
        self._given: dict[tuple[str, str], Any] = {}  # the seed that each line gives
        self._varied: set[str] = set()  # generators that a line seeds by several numbers
        self._draws: set[Draw] = set()  # since the last step
        self._seen: dict[int, set[Draw]] = {}  # of each window, in all its steps
        self._counts: dict[int, tuple[int, int]] = {}  # of each window: steps that drew, repeated
        self._again = ""  # the generator that came back first
        self._pass = 0  # through a loader, that the latest batch belongs to
        self._fresh: set[str] = set()  # seeded since the last pass of a module
        self._evaluating: set[str] = set()  # seeded right before a pass that learns nothing
        self._openings: list[Draw] = []  # what was drawn as epochs began
        self._paths: dict[str, dict[int, int]] = {}  # states at the steps since the latest seed
        self._rewinds: dict[str, list[Path]] = {}  # of the seeds before

    def install(self, patches: Patches) -> None:
        """Listen to what sets the seeds of the global generators."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.at_unwatched.append(self._follow)
        for owner, name in ((torch, "manual_seed"), (torch.random, "manual_seed")):
            patches.replace(owner, name, partial(self._seeds, "torch"))
        patches.replace(np.random, "seed", partial(self._seeds, "numpy"))
        patches.replace(random, "seed", partial(self._seeds, "random"))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See what was drawn before and in a pass that may learn; forget what others drew."""
        if self._states:
            served = self._batches.recent[-1] if self._batches.recent else None
            begins = served is not None and served.turn != self._pass
            self._pass = served.turn if served is not None else 0
            self._evaluating |= set() if forward.gradients else self._fresh
            self._fresh.clear()
            drawn = self._look()
            if forward.gradients and not begins:
                self._draws |= drawn
            elif forward.gradients and len(self._openings) < _MOST:
                self._openings += [draw for draw in drawn if draw[0] in self._evaluating]

    def after_backward(self, loss: torch.Tensor) -> None:
        """See where generators are in the steps after a seed."""
        self._follow()

    def before_step(self, window: Window) -> Columns:
        """See what was drawn since the last look, and whether an earlier step drew the same."""
        if not self._states:
            return {}
        # Of steps that are thinned out it is not known what they drew.
        drawn = self._look()
        draws, self._draws = self._draws | (drawn if window.stride == 1 else set()), set()
        if draws and window.optimizer is not None:
            seen = self._seen.setdefault(id(window), set())
            again = draws & seen
            steps, repeated = self._counts.get(id(window), (0, 0))
            self._counts[id(window)] = steps + 1, repeated + bool(again)
            self._again = self._again or next((kind for kind, _, _ in again), "")
            if len(seen) < _MOST:
                seen |= draws
        return {}

    def finish(self) -> Iterable[Event]:
        """Return how many steps drew what an earlier one had drawn."""
        self.looked |= {"random"} if self._counts else set()
        steps, repeated = max(self._counts.values(), key=lambda count: count[1], default=(0, 0))
        if repeated and self._again not in self._varied:
            yield make_probe(
                "random", repeated, steps, label=self._again, source=self._sources[self._again]
            )
        for kind in self._evaluating - self._varied:
            opened = [draw for draw in self._openings if draw[0] == kind]
            self.looked |= {"random"} if opened else set()
            if len(opened) > len(set(opened)):
                yield Probe(
                    probe="random epochs",
                    measured=float(len(opened) - len(set(opened))),
                    reference=float(len(opened)),
                    label=kind,
                    source=self._sources[kind],
                )

        yield from self._find_rewinds()

    def _find_rewinds(self) -> Iterable[Event]:
        """Return how many seeds were followed by the draws that followed an earlier one."""
        for kind in self._paths.keys() - self._varied:
            self._end_path(kind)
            paths = self._rewinds.get(kind, [])
            self.looked |= {"random"} if paths else set()
            if again := len(paths) - len(set(paths)):
                yield make_probe(
                    "random rewinds", again, len(paths), label=kind, source=self._sources[kind]
                )

    @shielded
    def _follow(self) -> None:
        """
        Note the states of generators that were seeded, in the first steps after that.

        A later backward before the same step takes the place of an earlier one, which may be that
        of an attack in an evaluation: what counts is what a step was made with.
        """
        at = self.recorder.steps
        for kind, path in self._paths.items():
            state = state_of(kind) if at in path or len(path) < _FOLLOWED else None
            if state is not None:
                path[at] = state

    def _end_path(self, kind: str) -> None:
        """Keep what the steps since the latest seed drew, if they drew anything."""
        states = tuple(self._paths.pop(kind, {}).values())
        paths = self._rewinds.setdefault(kind, [])
        if len(set(states)) > 1 and len(paths) < _MOST:
            # Other optimizers are those of another run, which may draw what the first one drew.
            paths.append((tuple(map(id, self.recorder.going)), states))

    def _seeds(self, kind: str, seed: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that sets a seed and tells of it."""

        @wraps(seed)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Set the seed."""
            result = seed(*args, **kwargs)
            own = foreign(sys._getframe(1).f_code.co_filename)  # noqa: SLF001 the way that is cheap
            self.seeded = self.seeded | {kind} if own else self.seeded - {kind}
            if self.recorder.patches.active and self.recorder.steps:
                self._note_seed(kind, next(iter([*args, *kwargs.values()]), None))
            return result

        return wrapper

    @shielded
    def _note_seed(self, kind: str, given: Any) -> None:
        """Take down where a generator was seeded, and whether by another number than before."""
        source = caller()
        if not np.array_equal(self._given.setdefault((kind, source), given), given):
            self._varied.add(kind)
        self._sources.setdefault(kind, source)
        self._fresh.add(kind)
        self._states[kind] = state_of(kind)
        self._end_path(kind)
        self._paths[kind] = {}

    def _look(self) -> set[Draw]:
        """Return how generators have moved since the last look."""
        moved = set()
        for kind, before in self._states.items():
            now = state_of(kind)
            if before is not None and now is not None and now != before:
                moved.add((kind, before, now))
            self._states[kind] = now
        return moved


def state_of(kind: str) -> int | None:
    """
    Return a number for the state of a global generator; None where it cannot be read.

    It is the same in all processes, unlike hashes of bytes.
    """
    with suppress(Exception):  # generators of other kinds may have been put in their place
        if kind == "torch":
            return crc32(torch.default_generator.get_state().numpy()[:_PART].data)
        if kind == "numpy":
            state: Any = np.random.get_state()
            return crc32(state[1][:8].data, state[2])
        return hash(random.getstate())
    return None
