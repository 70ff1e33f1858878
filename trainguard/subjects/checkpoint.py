"""The subject `Checkpoint`: what a training writes down to go on from, and how it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.subject import Subject, check_callable, parameters, required_names

# Parameters that mean what they say, where nothing is declared.
DIRECTORIES = (
    *("directory", "folder", "output_dir", "out_dir", "save_dir", "checkpoint_dir", "ckpt_dir"),
    *("checkpoint_folder", "checkpoints_dir", "run_dir", "work_dir", "workdir", "output_folder"),
    *("default_root_dir", "output_directory", "checkpoint_directory", "out"),
)
RESUMES = ("resume", "resume_training", "resume_from_checkpoint", "restore", "auto_resume")
RANKS = ("rank", "local_rank", "global_rank", "process_index")
PARTS = ("build", "step", "save", "load")
_LEAST = 2  # steps: one before the save, and one after the resume


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint(Subject):
    """
    A training that saves and goes on, as one function, as four, or the rotation of its files.

    train: `train(directory, resume=False)` trains, saves into the folder now and then, and goes on
        from there when `resume` is True, or by itself where it has no such parameter.
    directory, resume: the names of these two parameters, where they are not found by themselves.
    until: the parameter that says how long `train` goes on, where it saves at its end only; it is
        given half of `steps`, and then, with resume=True, the whole.
    build, step, save, load: instead of `train`: `build()` returns what is trained, `step(state)`
        trains it by a step, `save(state, path)` writes it down and `load(state, path)` puts that
        into a state that was built anew; a `load(path)` returns the state itself.
    rotate: `rotate(directory)`, called after each save, deletes what is no longer needed.
    files: the name of a checkpoint; "step_{}.pt" for `rotate`, which is called with steps in it.
    arguments: values for further parameters of `train` or `rotate`.
    steps: how many optimizer steps the whole run has; without it, all that `train` makes.
    keep: how many of the newest checkpoints are kept.
    safe: whether what is loaded is promised to execute no code of the file's.

    The run is made in processes of its own: once as it is, once until it is killed after a save,
    and from there on in a new process.
    """

    family: ClassVar[str] = "checkpoint"

    train: Callable[..., Any] | None = field(default=None, kw_only=False)
    directory: str | None = None
    resume: str | None = None
    until: str | None = None
    build: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None
    save: Callable[..., Any] | None = None
    load: Callable[..., Any] | None = None
    rotate: Callable[..., Any] | None = None
    files: str = "checkpoint.pt"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    keep: int | None = None
    safe: bool = False
    timeout: float = 300.0

    def __post_init__(self) -> None:
        """Declare a checkpoint; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        given = self.train or self.save or self.rotate
        check_checkpoint(self)
        name = self.name or getattr(given, "__name__", type(given).__name__)
        object.__setattr__(self, "name", name)
        super().__post_init__()

    @property
    def trains(self) -> bool:
        """Whether there is a training that can be resumed."""
        return self.train is not None or self.build is not None

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        made = {name for name in ("keep", "safe") if getattr(self, name)}
        if self.trains:
            made.add("resume")
        if self.train is not None or self.rotate is not None:
            made.add("rotation")
        return frozenset(made)

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        return {**super().promises, "steps": self.steps, "keep": self.keep, "safe": self.safe}


def named_parameter(function: Callable[..., Any], given: str | None, known: tuple[str, ...]) -> str:
    """Return the parameter that is named, or else the first known one that a function has."""
    if given is not None:
        return given
    try:
        accepted = signature(function).parameters  # those with a name, beside any **options
    except (TypeError, ValueError):
        return ""
    return next((name for name in known if name in accepted), "")


def check_checkpoint(made: Checkpoint) -> None:
    """Raise for a declaration that cannot be meant."""
    parts = [name for name in PARTS if getattr(made, name) is not None]
    if made.train is None and not parts and made.rotate is None:
        raise DeclarationError(
            "tg.Checkpoint is given nothing to judge. Pass the function that trains and saves, or"
            " build=, step=, save= and load=, or rotate=."
        )
    if made.train is not None and parts:
        raise DeclarationError(
            f"tg.Checkpoint got train and {parts[0]}, which are two ways to say the same."
            " Give one of them."
        )
    if parts and len(parts) < len(PARTS):
        lacking = next(name for name in PARTS if name not in parts)
        raise DeclarationError(
            f"tg.Checkpoint got {parts[0]} and lacks {lacking}. Give build, step, save and load."
        )
    for name in ("train", "rotate", *PARTS):
        if getattr(made, name) is not None:
            check_callable("Checkpoint", getattr(made, name))
    _check_numbers(made)
    _check_functions(made)


def _check_numbers(made: Checkpoint) -> None:
    """Raise for counts that are none, and for promises that need another one."""
    for name, least in (("steps", _LEAST), ("keep", 1)):
        value = getattr(made, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            raise DeclarationError(
                f"tg.Checkpoint({name}={value!r}) cannot be. Give a whole number >= {least}."
            )
    if not isinstance(made.safe, bool):
        raise DeclarationError(f"tg.Checkpoint(safe={made.safe!r}) cannot be. Give True or False.")
    if made.until is not None and made.steps is None:
        raise DeclarationError(
            f"tg.Checkpoint(until={made.until!r}) is not told what to give it. Write steps=8."
        )
    if not isinstance(made.files, str) or not made.files:
        raise DeclarationError(
            f"tg.Checkpoint(files={made.files!r}) is no name of a file. Give one: 'step_{{}}.pt'."
        )
    if made.rotate is not None and made.keep is None:
        raise DeclarationError(
            "tg.Checkpoint(rotate=...) is not told how many checkpoints are kept. Give keep=3."
        )
    if made.rotate is not None and made.files.count("{}") != 1:
        raise DeclarationError(
            f"tg.Checkpoint(files={made.files!r}) has no place for the step. Write 'step_{{}}.pt'."
        )


def _check_functions(made: Checkpoint) -> None:
    """Raise for parameters that the functions do not have, and for those that nobody gives."""
    both = made.train is not None and made.rotate is not None
    if both and made.arguments:
        raise DeclarationError(
            "tg.Checkpoint got arguments, which may be for train or for rotate."
            " Declare the rotation as a subject of its own."
        )
    for function in (made.train, made.rotate):
        if function is not None:
            _check_function(made, function, getattr(function, "__name__", type(function).__name__))


def _check_function(made: Checkpoint, function: Callable[..., Any], name: str) -> None:
    """Raise where a function takes no folder, or other arguments than it is given."""
    directory = named_parameter(function, made.directory, DIRECTORIES)
    if not directory:
        raise DeclarationError(
            f'{name} has no parameter that is known to be a folder. Name it: directory="...".'
        )
    trains = function is made.train
    own = (directory, *((made.resume, made.until) if trains else ()))
    accepted = parameters(function)
    for parameter in (*(word for word in own if word), *made.arguments):
        if accepted is not None and parameter not in accepted:
            raise DeclarationError(
                f"{name} takes no argument {parameter!r}.{did_you_mean(parameter, accepted)}"
            )
    found = RANKS if not trains else RESUMES
    lacking = sorted(required_names(function) - {*own, *made.arguments, *found})
    if lacking:
        raise DeclarationError(
            f"tg.Checkpoint({name}) lacks {lacking[0]!r}, which {name} cannot be called without."
            f" Give it in arguments={{{lacking[0]!r}: ...}}."
        )
