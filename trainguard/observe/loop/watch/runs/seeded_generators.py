"""Watches the generators of numpy that are made from a seed: how often by which line, and seed."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import foreign

_MOST = 4096  # lines and seeds

Seed = tuple[str, int]  # the line that makes a generator, and what from


class SeededGenerators(Watcher):
    """No event: `made` counts the generators of each line and seed; `count` all, up to `latest`."""

    makes = ()

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.made: Counter[Seed] = Counter()
        self.count = 0
        self.latest: Seed = ("", 0)

    def install(self, patches: Patches) -> None:
        """Listen to what makes generators."""
        patches.replace(np.random, "default_rng", self._makes)

    def _makes(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a generator, and counts it."""

        @wraps(make)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Make a generator."""
            seed = args[0] if args else kwargs.get("seed")
            if type(seed) is int and self.recorder.patches.active:
                self._count(seed, sys._getframe(1))  # noqa: SLF001 the way that is cheap
            return make(*args, **kwargs)

        wrapper.__module__ = np.random.__name__  # where it is found when somebody pickles it
        return wrapper

    def _count(self, seed: int, frame: Any) -> None:
        """Count a generator that a line of the user's makes."""
        file = frame.f_code.co_filename
        if len(self.made) < _MOST and foreign(file):
            self.latest = f"{file}:{frame.f_lineno}", seed
            self.made[self.latest] += 1
            self.count += 1
