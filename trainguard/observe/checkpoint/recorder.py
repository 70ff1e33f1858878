"""
The CheckpointRecorder: a recorder of a run that may be killed, or that goes on from a checkpoint.

It records as any recorder does, and takes down besides: a checksum of the parameters before and
after each step, when files were written, and once, when asked, the whole state of the training.
"""

import gc
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from traceback import extract_tb, format_exception_only, format_list
from types import TracebackType
from typing import Any

import torch
from torch import nn

from trainguard.core.errors import is_ours
from trainguard.events.base import Event
from trainguard.events.checkpoint import Load
from trainguard.events.loop import Average, Step
from trainguard.observe.checkpoint.files import (
    FileDeletion,
    FileDeletions,
    FileReads,
    FileWrites,
    Save,
    newer,
)
from trainguard.observe.checkpoint.state import (
    State,
    Sums,
    living_optimizers,
    parameters_of,
    state_now,
    sums_of,
)
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.devices import in_use
from trainguard.observe.tools.isolation import isolate
from trainguard.observe.tools.patches import tell_before
from trainguard.observe.tools.user_line import foreign

_FORWARDS = 8  # forwards of a step before which the state is taken; the last one counts
_PACKAGE = str(Path(__file__).parents[2])
LATER = 3  # steps after a save, or a resume: what is an average has moved by then
_FITS = 0.1  # share of a copy's move that its decay may leave unexplained, in an average


@dataclass(frozen=True, slots=True)
class Order:
    """
    What a process is to run.

    train, arguments: the call. directory: the folder of the run. seed: of all generators.
    steps: after so many the run is ended. at: the step before which its whole state is taken.
    kill: whether it is killed there. interrupt: (steps, bytes): in the save after so many steps it
    is killed, as soon as a file has so many bytes. older: the optimizers that are there already;
    None where they are to be looked for.
    """

    name: str
    train: Callable[..., Any]
    arguments: Mapping[str, Any]
    directory: Path
    result: Path
    seed: int = 0
    steps: int | None = None
    at: int | None = None
    kill: bool = False
    interrupt: tuple[int, int] | None = None
    older: tuple[torch.optim.Optimizer, ...] | None = None

    def __call__(self) -> None:
        """Run what was ordered, here, and write down what was seen of it."""
        older = living_optimizers() if self.older is None else self.older
        # Nothing that was there before is looked at again: a forked child would copy all of it.
        gc.freeze()
        witness = CheckpointRecorder(replace(self, older=older))
        with isolate(self.seed):
            try:
                with witness:
                    self.train(**self.arguments)
            except SystemExit as leaving:
                if leaving.code not in (None, 0):
                    witness.fails(leaving)
            except Exception as error:
                if is_ours(error):
                    raise
                witness.fails(error)
            witness.tell()


@dataclass(slots=True)
class Account:
    """
    What was seen of a run.

    steps: how many it made; ended: whether it came to its end by itself.
    series: what is known of each step. places: after each step, how many each optimizer had made.
    before, after: a checksum of the parameters before and after each step.
    saves: what was written, and when. opened: what was read before training began, and newer: what
    stood beside that with a higher number and was not read.
    deletions: what was deleted, lost: links without target, each with the step.
    averages: the checksums of averaged copies, by their names, some steps after each save; later:
    of what may be one, so many steps after the beginning.
    exact: whether all was computed where equal inputs give equal bits, on the CPU.
    """

    steps: int = 0
    ended: bool = False
    series: list[Step] = field(default_factory=list)
    places: dict[int, dict[str, int]] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    saves: list[Save] = field(default_factory=list)
    opened: frozenset[str] = frozenset()
    newer: frozenset[str] = frozenset()
    deletions: list[FileDeletion] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    averages: dict[int, dict[str, Sums]] = field(default_factory=dict)
    later: frozenset[Sums] = frozenset()
    exact: bool = True
    loads: list[Load] = field(default_factory=list)
    state: State | None = None
    error: str = ""
    source: str = ""
    trace: str = ""


class CheckpointRecorder(Recorder):
    """A recorder that follows an Order and gives an Account."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.name, steps=order.steps, probe=False)
        self.order, self.account = order, Account()
        self.folder = FileWrites(order.directory)
        self.loads = FileReads(order.directory)
        self.deletions = FileDeletions(order.directory, lambda: self.steps)
        self.roots: dict[int, nn.Module] = {}
        self.following: set[str] = set()  # names of copies that move as averages do
        self._forwards = 0
        self._wrote = False
        self.limit = None  # until training begins

    def __enter__(self) -> "CheckpointRecorder":
        """Install what any recorder has, and what comes before a forward."""
        super().__enter__()
        self.patches.replace(nn.Module, "__call__", tell_before(self._see_call))
        for optimizer in self.order.older or ():
            self.window_of(optimizer)
        self.loads.install(self.patches)
        self.deletions.install()
        self.folder.find_changes()  # what stands there already is not of this run
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """See what was written at the very end, and close the recording."""
        ended = kind is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        if ended:
            self._look()
        self.account.ended = ended
        return super().__exit__(kind, error, _)

    # What happens

    def _see_call(self, module: nn.Module, /, *_: Any, **__: Any) -> None:
        """Tell before a forward that learns."""
        outermost = not self.calling and not self.backward and self.patches.active
        learns = outermost and torch.is_grad_enabled() and module.training
        if learns and not self.is_bare(module):
            self.roots.setdefault(id(module), module)
            self.learning_begins()

    def learning_begins(self) -> None:
        """See the moment before a forward that learns, the last one before a step's backward."""
        if not self.account.before:
            self._training_begins()
        if self.steps not in self.account.before:
            self._forwards = 0
            self._look()
            self.account.before[self.steps] = self._parameters()
            with torch.no_grad():
                self._look_at_averages()
        self._forwards += 1
        if self.steps == self.order.at and self._forwards <= _FORWARDS:
            with torch.no_grad():
                self.account.state = self._state()

    def _training_begins(self) -> None:
        """Count from here: what loads a state may make an empty step, so that there is one."""
        told = self.account
        self.steps, told.steps, self.limit = 0, 0, self.order.steps
        told.series, told.places, told.after = [], {}, {}
        read, folder = self.deletions.opened, self.order.directory.resolve()
        told.opened = frozenset(read)
        later = {name for file in read for name in newer(file, folder)}
        told.newer = frozenset(
            n for n in later if not any(f"{r}/".startswith(f"{n}/") for r in read)
        )
        for window in self.windows:
            window.index, window.is_surveyed = 0, True

    def backward_begins(self, loss: torch.Tensor) -> None:
        """Be killed, where that is due; what went before has been taken down."""
        if self.steps not in self.account.before:
            self.learning_begins()
        if self.order.kill and self.steps == self.order.at:
            self.folder.settle()
            self.tell()
            os.kill(os.getpid(), signal.SIGKILL)
        super().backward_begins(loss)

    def keep(self, event: Event) -> None:
        """Take down steps and averages; the rest is for other judges."""
        if isinstance(event, Step):
            self.account.series.append(event)
        if isinstance(event, Average) and event.residual < _FITS and isfinite(event.decay):
            self.following |= {event.name} if 0 < event.decay < 1 else set()

    def step_passes(self, window: Window, skipped: bool = False) -> None:
        """Take down what the parameters are after a step."""
        told, due = self.account, self.order.interrupt
        told.steps = self.steps + (not skipped)
        made = {w.name: w.index for w in self.windows if w.index}
        told.places[told.steps] = {**made, window.name: window.index + 1}
        told.after[told.steps] = self._parameters()
        if due is not None and told.steps == due[0] and not skipped:
            self.folder.settle()  # the save before may still be written in the background
            _limit_files(due[1])
        super().step_passes(window, skipped)

    # The account

    def fails(self, error: BaseException) -> None:
        """Take down what the team's code raised."""
        text = " ".join(str(error).replace(f"{self.order.directory}/", "").split())
        self.account.error = f"{type(error).__name__}: {text}"[:400]
        stack = extract_tb(error.__traceback__)
        frames = [f for f in stack if foreign(f.filename)]
        own = [frame for frame in stack if not frame.filename.startswith(_PACKAGE)]
        self.account.trace = "".join([*format_list(own), *format_exception_only(error)])
        self.account.source = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""

    def tell(self) -> None:
        """Write the account down for the parent."""
        self.account.loads = self.loads.list_loads()
        self.account.deletions = self.deletions.found
        self.account.exact = not in_use()
        self.order.result.write_bytes(pickle.dumps(self.account))

    def _look(self) -> None:
        """Look whether files were written since the last step."""
        wrote = self.loads.written
        changed = self.folder.find_changes()
        if changed and (wrote or not self._wrote):
            if wrote and not self._wrote:  # from here on it is known what a save looks like
                self.account.saves = []
            self.account.saves.append(Save(self.steps, changed))
        self._wrote = self._wrote or wrote > 0
        if changed:  # what a thread pickles comes into its file later
            self.loads.written = 0
        self.account.lost += [(self.steps, name) for name in self.folder.lost_links()]

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that are part of the training."""
        living = [(w, o) for w in self.windows if w.optimizer is not None and (o := w.optimizer())]
        called = {id(p) for module in self.roots.values() for p in module.parameters()}
        older = {id(one) for one in self.order.older or ()}
        return [
            o
            for w, o in living
            if id(o) not in older or w.index or called & {id(p) for p in w.parameters}
        ]

    def _parameters(self) -> int:
        """Return one number for all that is trained."""
        return parameters_of(self._optimizers())

    def _look_at_averages(self) -> None:
        """Take down averages some steps after a save, and after a resume what may be one then."""
        if self.steps == LATER and self.order.at == 0:
            self.account.later = self._state().candidates
        elif any(save.step + LATER == self.steps for save in self.account.saves[-LATER - 1 :]):
            self.account.averages[self.steps] = sums_of(self._averages())

    def _averages(self) -> dict[str, Any]:
        """Return the averaged copies that are known, by their names."""
        return {
            name: copy.source
            for name, copy, named in self.watcher(AveragedCopies).copies()
            if (named or name in self.following) and copy.source is not None
        }

    def _state(self) -> State:
        """Return the state of the training as it is."""
        return state_now(self._optimizers(), self.roots.values(), self._averages())


def _limit_files(size: int) -> None:
    """Have this process killed by the system as soon as a file of it has so many bytes."""
    import resource  # there is none on Windows, where nothing is interrupted

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
