"""Observe a declared checkpoint: kill a real run, resume it, interrupt a save, rotate its files."""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.checkpoint import Departure, Part, Resumption
from trainguard.events.trace import Trace
from trainguard.observe.checkpoint.comparison import departures, parts, unlike_averages
from trainguard.observe.checkpoint.rotation import deletions, rotate_folders
from trainguard.observe.checkpoint.runs import Attempt, CheckpointRuns
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.checkpoint import Checkpoint

PROBES = ("resume", "interrupt", "rotate")


def observe(
    subject: Checkpoint, device: str, dtype: str, settings: Settings
) -> "CheckpointObservation":
    """Return the observation of a checkpoint; nothing runs until a trace is asked for."""
    return CheckpointObservation(subject, device, dtype, settings)


@dataclass
class CheckpointObservation(SubjectObservation[Checkpoint, Event]):
    """The traces of one training that is resumed; its runs are made once for all of them."""

    of, probes = "a checkpoint", PROBES

    def __post_init__(self) -> None:
        """Make a folder that is there for as long as the observation is."""
        super().__post_init__()
        base = Path(mkdtemp(prefix="trainguard-")).resolve()
        weakref.finalize(self, _delete, base, os.getpid())
        self._trials = CheckpointRuns(self.subject, base, self.settings.seed)

    def _observe_probe(self, probe: str) -> Trace[Event]:
        """Try a run out as a probe asks for."""
        probes: dict[str, Callable[[], Iterator[Event]]] = {
            "resume": self._observe_resume,
            "interrupt": self._observe_interruption,
            "rotate": self._observe_rotation,
        }
        events = tuple(probes[probe]())
        self.points += len(events)
        return self.make_trace(events)

    def _observe_resume(self) -> Iterator[Event]:
        """Yield how a run goes on that was killed after a save: the first in which it differs."""
        first = tuple(self._compare(self._trials.attempt))
        others = () if _differs(first) else map(self._compare, self._trials.other_attempts())
        yield from next((found for found in map(tuple, others) if _differs(found)), first)

    def _compare(self, made: Attempt) -> Iterator[Event]:
        """Yield how one run goes on, against the one without an interruption."""
        trials, told = self._trials, made.resumption
        state, other = None, made.resumed.state
        if other is not None:
            state = trials.reference(made)
        unlike = unlike_averages(trials.whole, made.resumed, told.saved)
        found = () if state is None or other is None else tuple(parts(state, other, unlike))
        if not told.began and any(p.same for p in found if p.kind in ("optimizer", "average")):
            told = replace(told, began=-1)  # it did go on, but for its parameters
        yield told
        yield from found
        if made.resumed.series:
            began = told.saved if told.began < 0 else told.began
            yield from departures(trials.whole, made.resumed, began)
        yield from made.resumed.loads

    def _observe_interruption(self) -> Iterator[Event]:
        """Yield how a run goes on that was killed in the middle of a save, and as it should."""
        told = self._trials.attempt.resumption
        yield told
        if not told.error and told.made and told.began > 0:
            yield self._trials.interrupt_save()

    def _observe_rotation(self) -> Iterator[Event]:
        """Yield what was deleted by the run, or by the function that rotates."""
        if self.subject.rotate is not None:
            yield from rotate_folders(self.subject, self._trials.base)
        if self.subject.train is not None:
            yield from deletions(self._trials.whole, self.subject.keep or 0)


def _differs(found: Iterable[Event]) -> bool:
    """Say whether anything of a resumed run is not as it should be."""
    return any(
        (isinstance(event, Part) and not event.same and event.kind != "generator")
        or (isinstance(event, Departure) and event.step >= 0)
        or (isinstance(event, Resumption) and _went_astray(event))
        for event in found
    )


def _went_astray(told: Resumption) -> bool:
    """Say whether a run raised, went on from elsewhere, or made another number of steps."""
    wrong = told.error or told.began != told.saved
    return bool(wrong) or (told.ended and told.made != told.left)


def _delete(folder: Path, owner: int) -> None:
    """Delete a folder, unless it is a child that comes here: it is not the child's."""
    if os.getpid() == owner:
        rmtree(folder, ignore_errors=True)
