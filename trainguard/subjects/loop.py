"""The subjects `Loop` and `Script`: a training run, recorded as it is and judged."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.events.curve import COLUMNS
from trainguard.subjects.budget import Budget
from trainguard.subjects.budget_checks import check_budgeted
from trainguard.subjects.relation import Relation, check_relations
from trainguard.subjects.subject import (
    Subject,
    check_callable,
    check_device_type,
    check_word,
    parameters,
    required_names,
)

LEAST_SEEDS: Final = 3

_LOGS: Final = (".csv", ".ipynb", ".json", ".jsonl", ".log", ".tsv", ".txt")


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Subject):
    """
    What a function and a script that train have in common: how long, and what they promise.

    steps: stop after so many optimizer steps, cleanly; the whole run where it is None.
    batch: the number of samples in each optimizer step, over all micro-batches of one process;
        over all processes, where `ranks` are several numbers of them.
    falls: the share of its first value that the loss falls by within the run, 0 to 1.
    average: the decay of the averaged copy (EMA) that the run keeps, such as 0.996.
    frozen: globs of parameters that must stay ("Net.backbone.*").
    trainable: globs of parameters that must move.
    budget: what the memory of its steps may come to.
    probe: whether live objects may be copied and tried out where watching is not enough.
    ranks: of how many processes it is made, which are judged together; of several numbers, (1, 2),
        the runs are held against each other as well.
    relations: what must hold between a step and the same step with its batch edited.
    """

    family: ClassVar[str] = "loop"

    steps: int | None = None
    batch: int | None = None
    falls: float | None = None
    average: float | None = None
    frozen: tuple[str, ...] = ()
    trainable: tuple[str, ...] = ()
    budget: Budget | None = None
    probe: bool = True
    ranks: int | tuple[int, ...] | None = None
    relations: tuple[Relation, ...] = ()
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Declare a run; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        kind = type(self).__name__
        for name in ("frozen", "trainable"):
            object.__setattr__(self, name, _globs(kind, name, getattr(self, name)))
        for name in ("steps", "batch"):
            _check_count(kind, name, getattr(self, name))
        _check_ranks(kind, self.ranks)
        for name in ("falls", "average"):
            _check_share(kind, name, getattr(self, name))
        object.__setattr__(self, "relations", check_relations(kind, self.relations))
        super().__post_init__()

    @property
    def families(self) -> tuple[str, ...]:
        """The families of invariants that judge this run: of several processes, one more."""
        return (*super().families, "ranks") if self.processes > 1 else super().families

    @property
    def worlds(self) -> tuple[int, ...]:
        """The numbers of processes that it is run with, the smallest first."""
        counts = self.ranks if isinstance(self.ranks, tuple) else (self.ranks or 1,)
        return tuple(sorted(set(counts)))

    @property
    def processes(self) -> int:
        """Of how many processes the run is made that is judged; the most, of several numbers."""
        return self.worlds[-1]

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        names = ("batch", "falls", "average")
        made = {name for name in names if getattr(self, name) is not None}
        made -= {"batch"} if len(self.worlds) > 1 else set()
        globs = {name for name in ("frozen", "trainable", "relations") if getattr(self, name)}
        return super().promise_names | made | globs

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        names = ("steps", "batch", "falls", "average", "frozen", "trainable")
        told: dict[str, Plain] = {name: getattr(self, name) for name in names}
        if len(self.worlds) > 1:
            told |= {"batch": None, "batch_of_all": self.batch}
        relations = tuple(relation.name for relation in self.relations)
        return {**super().promises, **told, **({"relations": relations} if relations else {})}


@dataclass(frozen=True, eq=False, kw_only=True)
class Loop(Run):
    """
    A function that trains: `train()` runs the real loop, unedited, under the recorder.

    arguments: values for the parameters of `train`.
    curve: columns that are held against their snapshot: "loss", "grad_norm", "rate",
        "update_norm", "weight_norm" (both of a sample of the parameters), "memory".
    devices: with `ranks`, the type of device of which there is one for each process: "cpu", where
        all others are hidden, or "cuda". Which one it takes the function says, by LOCAL_RANK.
    seeds: compare the curves of so many seeds as distributions, for runs that cannot repeat.

    Optimizers, models, schedulers, scalers and losses are found by themselves. RNG streams are
    seeded before the run and restored after it; gradients, modes and files are the function's own.
    """

    train: Callable[..., Any] = field(kw_only=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    curve: tuple[str, ...] = ()
    seeds: int | None = None
    devices: str = "cpu"

    def __post_init__(self) -> None:
        """Declare a loop; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        check_callable("Loop", self.train)
        _check_trains(self.train)
        check_device_type("Loop", self.devices)
        if self.devices != "cpu" and self.ranks is None:
            raise DeclarationError(
                f"tg.Loop(devices={self.devices!r}) is for several processes: one takes what its"
                " function says. Give ranks too."
            )
        object.__setattr__(self, "curve", _columns(self.curve))
        _check_seeds(self.seeds, self.curve)
        name = self.name or getattr(self.train, "__name__", type(self.train).__name__)
        object.__setattr__(self, "name", name)
        accepted = parameters(self.train)
        for argument in self.arguments:
            if accepted is not None and argument not in accepted:
                raise DeclarationError(
                    f"{name} takes no argument {argument!r}.{did_you_mean(argument, accepted)}"
                )
        missing = sorted(required_names(self.train) - set(self.arguments))
        if missing:
            raise DeclarationError(
                f"tg.Loop({name}) lacks {missing[0]!r}, which {name} cannot be called without."
                f" Give it in arguments={{{missing[0]!r}: ...}}."
            )
        check_budgeted(self, (), self.arguments, accepted)
        super().__post_init__()

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        return super().promise_names | ({"curve"} if self.curve else set())


def _check_trains(train: Callable[..., Any]) -> None:
    """Raise for a function of which a call alone does nothing: a generator or a coroutine."""
    for is_one, kind, call in (
        (inspect.isgeneratorfunction, "a generator", "for _ in {}(): pass"),
        (inspect.iscoroutinefunction, "a coroutine", "asyncio.run({}())"),
    ):
        if is_one(train):
            name = getattr(train, "__name__", "train")
            raise DeclarationError(
                f"tg.Loop got {name}, which makes {kind}: calling it trains nothing. Pass a"
                f" function that runs it: {call.format(name)}."
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Script(Run):
    """
    A script that trains, run in a process of its own as `python path args...` would run it.

    path: the script, from the working directory of the tests or from the guard file's folder.
    module: whether path is the name of a module instead, as for `python -m`.
    args: its command line. directory: where it runs; the script's folder is not entered for it.
    """

    path: str | Path = field(kw_only=False)
    module: bool = False
    args: Sequence[str] = ()
    directory: str | Path | None = None

    def __post_init__(self) -> None:
        """Declare a script; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        if not isinstance(self.path, str | Path) or not str(self.path):
            raise DeclarationError(f"tg.Script got {self.path!r}. Give the path of a script.")
        if isinstance(self.ranks, tuple):
            raise DeclarationError(
                f"tg.Script(ranks={self.ranks!r}) cannot be: a script is run once."
                " Declare its function: tg.Loop(train, ranks=(1, 2))."
            )
        if self.relations:
            raise DeclarationError(
                "tg.Script(relations=...) cannot be: a script runs in a process of its own."
                " Declare its function: tg.Loop(train, relations=...)."
            )
        if isinstance(self.args, str):
            raise DeclarationError(
                f"tg.Script(args={self.args!r}) is one string. Give a list: {self.args.split()!r}."
            )
        object.__setattr__(self, "args", tuple(str(word) for word in self.args))
        own = str(self.path) if self.module else Path(self.path).stem
        object.__setattr__(self, "name", self.name or own)
        check_budgeted(self, (), {}, ())
        super().__post_init__()


def check_is_code(script: Path) -> None:
    """Raise for a log: many a line of JSON or CSV is Python too, and would be run as that."""
    if script.suffix.lower() in _LOGS:
        raise DeclarationError(
            f"{script} is a log, and no script that could be run. Give the script that wrote it."
        )


def named_by(name: str, globs: tuple[str, ...]) -> bool:
    """Say whether a parameter's name, with or without its module's class, fits one of the globs."""
    short = name.partition(".")[2]
    return any(fnmatchcase(text, glob) for glob in globs for text in (name, short))


def _globs(kind: str, name: str, value: Any) -> tuple[str, ...]:
    """Return a tuple of globs; a single string is one of them."""
    globs = (value,) if isinstance(value, str) else tuple(value)
    for glob in globs:
        if not isinstance(glob, str) or not glob:
            raise DeclarationError(
                f"tg.{kind}({name}=...) has {glob!r}. Give globs such as 'Net.backbone.*'."
            )
    return globs


def _columns(value: Any) -> tuple[str, ...]:
    """Return the columns of curves; a single string is one of them."""
    columns = (value,) if isinstance(value, str) else tuple(value)
    check_word("tg.Loop(curve=...)", columns, COLUMNS)
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise DeclarationError(
            f"tg.Loop(curve={columns}) has {twice[0]!r} twice. Drop one of them."
        )
    return columns


def _check_seeds(value: Any, curve: tuple[str, ...]) -> None:
    """Raise where seeds are given that cannot be compared, or that nothing is done with."""
    if value is None:
        return
    _check_count("Loop", "seeds", value)
    if value < LEAST_SEEDS:
        raise DeclarationError(
            f"tg.Loop(seeds={value}) is too few to compare. Give {LEAST_SEEDS} or more."
        )
    if not curve:
        raise DeclarationError(
            f"tg.Loop(seeds={value}) compares nothing. Name the columns: curve='loss'."
        )


def _check_count(kind: str, name: str, value: Any) -> None:
    """Raise where a count is given and is no whole number above zero."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        _refuse(kind, name, value, "a whole number >= 1")


def _check_ranks(kind: str, value: Any) -> None:
    """Raise where numbers of processes are given that are no whole numbers above zero."""
    if not isinstance(value, tuple):
        _check_count(kind, "ranks", value)
    elif not value or not all(type(count) is int and count > 0 for count in value):
        _refuse(kind, "ranks", value, "whole numbers >= 1, such as (1, 2)")


def _check_share(kind: str, name: str, value: Any) -> None:
    """Raise where a share is given and does not lie between zero and one."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < 1):
        _refuse(kind, name, value, "a number in 0 to 1")


def _refuse(kind: str, name: str, value: Any, allowed: str) -> NoReturn:
    """Raise for the value of an argument, which of a script is an option too."""
    told = f"cannot be. Give {allowed}."
    as_option = f"--{name} {value!r} {told}" if kind == "Script" else ""
    raise DeclarationError(f"tg.{kind}({name}={value!r}) {told}", as_option)
