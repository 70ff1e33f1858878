"""The subject `Log`: what is left of a run that is over, its logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import ClassVar, Final

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.subject import Subject

COLUMNS: Final = ("loss", "rate", "norm", "val_loss", "step", "epoch", "time")


@dataclass(frozen=True, eq=False, kw_only=True)
class Log(Subject):
    """
    The logs of a run that is over, read and judged: nothing is run.

    paths: files or folders: trainer_state.json, TensorBoard event files, tables, JSON lines, MLflow
        file stores, printed output, traces; from the working directory or the guard file's folder.
    columns: {"loss": "train/nll"}, where the names do not tell what a column is.
    falls: the share of its first value that the loss falls by, 0 to 1.
    classes: how many classes, or words, the loss is a cross-entropy over.
    peak: the highest rate that the schedule is meant to reach.
    """

    family: ClassVar[str] = "log"

    paths: str | Path | Sequence[str | Path] = field(kw_only=False)
    columns: Mapping[str, str] = field(default_factory=dict)
    falls: float | None = None
    classes: int | None = None
    peak: float | None = None

    def __post_init__(self) -> None:
        """Declare the logs of a run; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        given = (self.paths,) if isinstance(self.paths, str | Path) else tuple(self.paths)
        if not given or not all(isinstance(path, str | Path) and str(path) for path in given):
            raise DeclarationError(f"tg.Log got {self.paths!r}. Give the path of a log.")
        object.__setattr__(self, "paths", given)
        object.__setattr__(self, "name", self.name or Path(given[0]).absolute().name)
        for role in self.columns:
            if role not in COLUMNS:
                told = f"names no column that is judged.{did_you_mean(role, COLUMNS)}"
                raise DeclarationError(
                    f"tg.Log(columns={{{role!r}: ...}}) {told}", f"--column {role}=... {told}"
                )
        for name, fits in (
            ("falls", self.falls is None or 0 < self.falls < 1),
            ("classes", self.classes is None or self.classes > 1),
            ("peak", self.peak is None or 0 < self.peak < inf),
        ):
            if not fits:
                value = getattr(self, name)
                told = f"cannot be. Give {_ALLOWED[name]}."
                raise DeclarationError(
                    f"tg.Log({name}={value!r}) {told}", f"--{name} {value} {told}"
                )
        super().__post_init__()

    @property
    def families(self) -> tuple[str, ...]:
        """The families that judge it: its own, and that of recorded runs."""
        return ("loop", "log")

    @property
    def is_log(self) -> bool:
        """Whether it is what was logged of a run."""
        return True

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        return frozenset(name for name in _ALLOWED if getattr(self, name) is not None)

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        return {**super().promises, **{name: getattr(self, name) for name in _ALLOWED}}


_ALLOWED: Final = {
    "falls": "a share between 0 and 1",
    "classes": "a whole number of 2 or more",
    "peak": "a finite rate above 0",
}
