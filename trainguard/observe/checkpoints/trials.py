"""
The runs that a declared training is tried out with, each in a process of its own.

`whole` is not interrupted. `killed` is the same run, killed after a save. `resumed` goes on from
what that left behind. All three have the same folder, one after the other, since a checkpoint may
hold its path.
"""

import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import Any

from trainguard.checkpoint import DIRECTORIES, RESUMES, Checkpoint, named_parameter
from trainguard.fault import SubjectError, Unjudged
from trainguard.observe.checkpoints.process import Ending, apart, forks
from trainguard.observe.checkpoints.state import living_optimizers
from trainguard.observe.checkpoints.witness import Account, Order
from trainguard.observe.checkpoints.written import Written
from trainguard.saved import Resumption

_BEYOND = 2  # steps that a resumed run may make too many, to see that it does


@dataclass
class Trials:
    """The runs of one subject, each made when it is first asked for."""

    subject: Checkpoint
    base: Path
    seed: int
    _began: float = field(default_factory=monotonic)

    @cached_property
    def train(self) -> Callable[..., Any]:
        """The function that trains: the declared one, or one made of its parts."""
        return self.subject.train or Written(self.subject)

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
            account = self._made(self._order(steps=self.subject.steps))
        else:
            account = self._made(self._order(until=self._until, at=self._halfway.steps))
        if account.error:
            raise SubjectError(
                f"it raised {account.error} after {account.steps} steps",
                "make it run by itself first",
            )
        if not account.steps:
            raise SubjectError("it made no optimizer step", "declare a function that trains")
        return account

    @cached_property
    def saved(self) -> int:
        """After how many steps the checkpoint was written from which a run is to go on."""
        whole = self.whole
        if self._until is not None:
            return self._halfway.steps
        inside = [step for step in whole.saves if 0 < step < whole.steps]
        if not inside:
            raise SubjectError(
                f"it wrote nothing into its folder before the last of its {whole.steps} steps",
                "let it save more often; where it saves at its end only, name the parameter that"
                ' ends it: until="steps"',
            )
        early = [step for step in inside if 2 * step <= whole.steps]
        return max(early, default=inside[0])

    @cached_property
    def killed(self) -> Account:
        """The run that is killed after a save, or that ends there; its files are left."""
        if self._until is None:
            account = self._made(self._order(at=self.saved, kill=True))
        else:
            account = self._halfway
        other = self.whole.before
        told = [step for step, print_ in account.before.items() if other.get(step) != print_]
        if told or account.error or account.steps < self.saved:
            at = told[0] if told else account.steps
            raise Unjudged(
                f"two runs from the same seed part before step {at}, so that a resumed run cannot"
                " be compared with either"
            )
        return account

    @cached_property
    def resumed(self) -> Account:
        """The run that goes on from there in a new process."""
        assert self.killed is not None
        left = self.whole.steps - self.saved
        steps = left + _BEYOND if self.ended else left
        if self._until is not None:
            rmtree(self.folder, ignore_errors=True)
            self._held.rename(self.folder)
        return self._made(self._order(resume=True, until=self._until, steps=steps, at=0))

    @property
    def _until(self) -> int | None:
        """What is given to the parameter that says how long the run is, where there is one."""
        return None if self.subject.until is None else self.subject.steps

    @property
    def _held(self) -> Path:
        """Where the files of a run are held that ended halfway, until they are gone on from."""
        return self.base / "held"

    @cached_property
    def _halfway(self) -> Account:
        """The run that ends halfway because it is told to; its files are held."""
        assert self._until is not None
        account = self._made(self._order(until=self._until // 2))
        self.folder.rename(self._held)
        return account

    @property
    def ended(self) -> bool:
        """Whether the whole run came to its end by itself."""
        return self.whole.ended and self.subject.train is not None

    @cached_property
    def resumption(self) -> Resumption:
        """How the resumed run began."""
        return self.began(self.resumed, self.saved)

    def began(self, account: Account, saved: int) -> Resumption:
        """Return at which step of the whole run another one began, by its parameters."""
        print_ = account.before.get(0)
        places = [step for step, other in self.whole.before.items() if other == print_]
        began = saved if saved in places else max(places, default=-1)
        return Resumption(
            saved=saved,
            began=began,
            made=account.steps,
            left=self.whole.steps - saved,
            ended=self.ended,
            error=account.error,
            source=account.source,
        )

    # A save that is interrupted

    def interrupted(self) -> Resumption:
        """Return how a run goes on that was killed in the middle of its second save."""
        before, at = self._two_saves()
        size = self.whole.sizes[self.whole.saves.index(at)]
        order = self._order(interrupt=(at, size // 2))
        if self._until is not None:
            self._made(self._order(until=self._until // 2))
            order = self._order(until=self._until, resume=True, interrupt=(at - before, size // 2))
        ending = self._ended(order)
        if ending.code != -signal.SIGXFSZ:
            raise Unjudged(
                "no file of its second save is written in place of the size that it should have, so"
                " that the save could not be interrupted"
            )
        account = self._made(self._order(resume=True, until=self._until, steps=1))
        told = self.began(account, before)
        return _with_size(told, size // 2, size)

    def _two_saves(self) -> tuple[int, int]:
        """Return after how many steps the run saved, and after how many it did so again."""
        if not hasattr(signal, "SIGXFSZ"):
            raise Unjudged("this system does not kill a process for the size of its files")
        if self._until is not None and self.whole.saves:
            return self.saved, self.whole.saves[-1]
        saves = [step for step in self.whole.saves if step > 0]
        if len(saves) < 2:
            raise Unjudged("it saves once: a save that is interrupted has no other one to keep")
        return saves[0], saves[1]

    # Processes

    def _order(
        self,
        *,
        resume: bool = False,
        until: int | None = None,
        **options: Any,
    ) -> Order:
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

    def _made(self, order: Order) -> Account:
        """Run an order, and return its account; a process that left none is the subject's fault."""
        ending = self._ended(order)
        if order.result.exists():
            account: Account = pickle.loads(order.result.read_bytes())  # noqa: S301 our own
            return account
        if "trainguard itself" in ending.printed:
            raise RuntimeError(ending.printed)
        raise SubjectError(
            f"its process ended with {_code(ending.code)}", "make it run by itself first"
        ) from ending.cause

    def _ended(self, order: Order) -> Ending:
        """Run an order in a process of its own, within the time that is left."""
        order.result.unlink(missing_ok=True)
        left = self.subject.timeout - (monotonic() - self._began)
        return apart(order, self.base, max(left, 1.0))


def _with_size(told: Resumption, limit: int, size: int) -> Resumption:
    """Return a resumption with what had been written of the file when it was interrupted."""
    columns = {name: getattr(told, name) for name in told.__dataclass_fields__}
    return Resumption(**{**columns, "limit": limit, "size": size})


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
