"""
The runs that a declared training is tried out with, each in a process of its own.

One is not interrupted. The same is killed after a save, and another goes on from what that left
behind. All of them have the same folder, one after the other, since a checkpoint may hold its path.
A training that is declared by its parts (build, step, save, load) is made of these.
"""

import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import Any

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.checkpoint import Resumption
from trainguard.observe.checkpoint.files import Save, kinds
from trainguard.observe.checkpoint.process import Ending, Printed, apart
from trainguard.observe.checkpoint.recorder import Account, Order
from trainguard.observe.checkpoint.state import State, living_optimizers
from trainguard.observe.tools.child_process import forks
from trainguard.subjects.checkpoint import DIRECTORIES, RESUMES, Checkpoint, named_parameter

_BRIEF = 10.0  # seconds that three runs may take for four more of them to be made
_BEYOND = 2  # steps that a resumed run may make too many, to see that it does


@dataclass(frozen=True)
class Attempt:
    """A run that was killed, the one that went on from there, and how that one began."""

    killed: Account
    resumed: Account
    resumption: Resumption


@dataclass
class CheckpointRuns:
    """The runs of one subject, each made when it is first asked for."""

    subject: Checkpoint
    base: Path
    seed: int
    _started: float = field(default_factory=monotonic)

    @cached_property
    def train(self) -> Callable[..., Any]:
        """The function that trains: the declared one, or one made of its parts."""
        return self.subject.train or FourFunctions(self.subject)

    @property
    def folder(self) -> Path:
        """The folder that the run is given."""
        return self.base / "run"

    @cached_property
    def _older(self) -> tuple[Any, ...] | None:
        """The optimizers that are there before any run, where a child will have them too."""
        return living_optimizers() if forks() else None

    # The runs

    @cached_property
    def whole(self) -> Account:
        """The run that is not interrupted."""
        if self._until is None:
            account = self._run_order(self._order(steps=self.subject.steps))
        else:
            account = self._run_order(self._order(until=self._until, at=self._halfway.steps))
        if account.error:
            raise SubjectError(
                f"it raised {account.error} after {account.steps} steps",
                "make it run by itself first",
            ) from Printed(f"\nTraceback (most recent call last):\n{account.trace}")
        if not account.steps:
            raise SubjectError("it made no optimizer step", "declare a function that trains")
        return account

    @cached_property
    def attempt(self) -> Attempt:
        """
        The run that is killed and resumed.

        Where it cannot be resumed from an early save, or begins anew, a later one is tried: not all
        that is written is meant to go on from.
        """
        made = self._attempt_resume(self._early)
        nothing = made.resumption.error or made.resumption.began == 0
        last = self._inside[-1] if self._until is None else self._early
        return self._attempt_resume(last) if nothing and last != self._early else made

    def other_attempts(self) -> Iterator[Attempt]:
        """Yield the runs that are killed after the first save and the last, where that is brief."""
        # What matters in a warmup alone, or at the end, makes no difference in the middle.
        brief = monotonic() - self._started < min(_BRIEF, self.subject.timeout / 4)
        ends = {self._inside[0], self._inside[-1]} if self._until is None and brief else set()
        for saved in sorted(ends - {self.attempt.resumption.saved}):
            made = self._attempt_resume(saved)
            if not made.resumption.error and made.resumption.began == saved:
                yield made

    @property
    def has_ended(self) -> bool:
        """Whether the whole run came to its end by itself."""
        return self.whole.ended and self.subject.train is not None

    def reference(self, attempt: Attempt) -> State | None:
        """Return the state of the whole run where a resumed one began, if that is known."""
        told = attempt.resumption
        if told.began in (told.saved, 0, -1):
            return attempt.killed.state or self.whole.state
        return self._run_order(self._order(at=told.began, kill=True)).state

    @cached_property
    def _inside(self) -> list[int]:
        """After how many steps files were written, but for the beginning and the end."""
        inside = [save.step for save in self.whole.saves if 0 < save.step < self.whole.steps]
        if not inside:
            raise SubjectError(
                f"it wrote nothing into its folder before the last of its {self.whole.steps} steps",
                "let it save more often; where it saves at its end only, name the parameter that"
                ' ends it: until="steps"',
            )
        return inside

    @property
    def _early(self) -> int:
        """After how many steps the run is killed first: by half of it, where it has saved then."""
        if self._until is not None:
            return self._halfway.steps
        early = [step for step in self._inside if 2 * step <= self.whole.steps]
        return max(early, default=self._inside[0])

    @property
    def _until(self) -> int | None:
        """What is given to the parameter that says how long the run is, where there is one."""
        return None if self.subject.until is None else self.subject.steps

    @property
    def _held_folder(self) -> Path:
        """Where the files of a run are held that ended halfway, until they are gone on from."""
        return self.base / "held"

    @cached_property
    def _halfway(self) -> Account:
        """The run that ends halfway because it is told to; its files are held."""
        assert self._until is not None
        account = self._run_order(self._order(until=self._until // 2))
        self.folder.rename(self._held_folder)
        return account

    def _attempt_resume(self, saved: int) -> Attempt:
        """Kill the run after a save, and go on from there in a new process."""
        killed = self._run_until_killed(saved)
        steps = self.whole.steps + _BEYOND if self.has_ended else self.whole.steps - saved
        if self._until is not None:
            rmtree(self.folder, ignore_errors=True)
            self._held_folder.rename(self.folder)
        resumed = self._run_order(self._order(resume=True, until=self._until, steps=steps, at=0))
        return Attempt(killed, resumed, self._began(resumed, saved))

    def _run_until_killed(self, saved: int) -> Account:
        """Run until it is killed after a save, or ends there; raises Unjudged where runs differ."""
        if self._until is None:
            account = self._run_order(self._order(at=saved, kill=True))
        else:
            account = self._halfway
        other = self.whole.before
        told = [step for step, print_ in account.before.items() if other.get(step) != print_]
        if told or account.error or account.steps < saved:
            at = told[0] if told else account.steps
            raise Unjudged(
                f"two runs from the same seed part before step {at}, so that a resumed run cannot"
                " be compared with either"
            )
        return account

    def _began(self, account: Account, saved: int) -> Resumption:
        """Return at which step of the whole run another one began, by its parameters."""
        print_ = account.before.get(0)
        places = [step for step, other in self.whole.before.items() if other == print_]
        began = saved if saved in places else max(places, default=-1)
        return Resumption(
            saved=saved,
            began=began,
            newer=min(account.newer, default=""),
            made=account.steps,
            left=self.whole.steps - (began if began > 0 else saved),
            ended=self.has_ended,
            error=account.error,
            source=account.source,
        )

    # A save that is interrupted

    def interrupt_save(self) -> Resumption:
        """Return how a run goes on that was killed in the middle of a later save."""
        before = self.attempt.resumption.began
        save = self._next_save(before)
        size = max(save.files.values())
        order = self._order(interrupt=(save.step, size // 2))
        if self._until is not None:
            self._run_order(self._order(until=self._until // 2))
            at = save.step - before
            order = self._order(until=self._until, resume=True, interrupt=(at, size // 2))
        ending = self._run_process(order)
        if ending.code != -signal.SIGXFSZ:
            raise Unjudged(
                "no file of a later save is written as long as it should be, so that the save could"
                " not be interrupted"
            )
        account = self._run_order(self._order(resume=True, until=self._until, steps=1))
        return replace(self._began(account, before), limit=size // 2, size=size)

    def _next_save(self, before: int) -> Save:
        """Return the next save after a step, of such files as the resumed run went on from."""
        if not hasattr(signal, "SIGXFSZ"):
            raise Unjudged("this system does not kill a process for the size of its files")
        later = [save for save in self.whole.saves if save.step > before and before > 0]
        if not later:
            raise Unjudged("it saves once: a save that is interrupted has no other one to keep")
        read = {kind for name in self.attempt.resumed.opened for kind in kinds(name)}
        alike = [s for s in later if any(kinds(name) & read for name in s.files)]
        return (alike or later)[0]

    # Processes

    def _order(self, *, resume: bool = False, until: int | None = None, **options: Any) -> Order:
        """Return the order of a run; one that resumes finds the folder as it was left."""
        if not resume:
            rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        arguments = {**self.subject.arguments, **self._own(resume)}
        if self.subject.until is not None:
            arguments[self.subject.until] = until
        return Order(
            name=self.subject.name,
            train=self.train,
            arguments=arguments,
            directory=self.folder,
            result=self.base / "account",
            seed=self.seed,
            older=self._older,
            **options,
        )

    def _own(self, resume: bool) -> dict[str, Any]:
        """Return the folder, and whether to resume, under the names that the function has."""
        if self.subject.train is None:
            return {"directory": self.folder, "resume": resume}
        directory = named_parameter(self.train, self.subject.directory, DIRECTORIES)
        own: dict[str, Any] = {directory: path_for(self.train, directory, self.folder)}
        resumes = named_parameter(self.train, self.subject.resume, RESUMES)
        return {**own, resumes: resume} if resumes else own

    def _run_order(self, order: Order) -> Account:
        """Run an order, and return its account; a process that left none is the subject's fault."""
        ending = self._run_process(order)
        if order.result.exists():
            account: Account = pickle.loads(order.result.read_bytes())  # noqa: S301 our own
            return account
        if "trainguard itself" in ending.printed:
            raise RuntimeError(ending.printed)
        raise SubjectError(
            f"its process ended with {_code(ending.code)}", "make it run by itself first"
        ) from ending.cause

    def _run_process(self, order: Order) -> Ending:
        """Run an order in a process of its own, within the time that is left."""
        order.result.unlink(missing_ok=True)
        left = self.subject.timeout - (monotonic() - self._started)
        return apart(order, self.base, max(left, 1.0))


def path_for(function: Callable[..., Any], parameter: str, folder: Path) -> Path | str:
    """Return a folder as a function wants it: a string where its parameter says so."""
    try:
        made = signature(function).parameters[parameter]
    except (KeyError, TypeError, ValueError):
        return folder
    is_string = made.annotation in (str, "str") or isinstance(made.default, str)
    return str(folder) if is_string else folder


def _code(code: int) -> str:
    """Say how a process ended."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


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
