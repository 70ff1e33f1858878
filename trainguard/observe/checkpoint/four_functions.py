"""A training that is made of four functions: build, step, save, load."""

from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from trainguard.subjects.checkpoint import Checkpoint

DEFAULT_STEPS = 8


@dataclass(frozen=True)
class FourFunctions:
    """
    The `train` of a subject that declares its parts: it saves halfway, and once more later on.

    Both times to the same path, as a training does that keeps its latest state.
    """

    parts: Checkpoint

    @property
    def steps(self) -> int:
        """How many times `step` is called."""
        return self.parts.steps or DEFAULT_STEPS

    def __call__(self, directory: Path, resume: bool) -> None:
        """Train, save, and train on until the recorder ends it; when resumed, load and train on."""
        build, step, save = self.parts.build, self.parts.step, self.parts.save
        assert build is not None
        assert step is not None
        assert save is not None
        path = directory / self.parts.files
        halfway = self.steps // 2
        saves = () if resume else (halfway, (halfway + self.steps) // 2)
        state = self._load(path) if resume else build()
        for made in range(1, self.steps + 1):
            step(state)
            if made in saves:
                save(state, path)

    def _load(self, path: Path) -> Any:
        """Return the state that was saved: put into one built anew, or made by `load` itself."""
        build, load = self.parts.build, self.parts.load
        assert build is not None
        assert load is not None
        taken = signature(load).parameters.values()
        needed = [p for p in taken if p.default is Parameter.empty and p.kind is not p.VAR_KEYWORD]
        if len(needed) == 1:
            return load(path)
        state = build()
        load(state, path)
        return state
