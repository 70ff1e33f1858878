"""
A Subject declares one real component of a training: what it is, how to feed it, what it promises.

Subjects are frozen and inert: making one runs nothing of the component and imports no torch.
Everything that can be wrong about a declaration is said when it is made.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from trainguard.core.catalogue import of_families, suggest_name
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """
    What all declarations share.

    allow: {invariant: reason}, strict: an excuse for what does not break fails.
    limits: {invariant: number}, this subject's own threshold in the unit of the message.
    timeout: seconds that one observation may take.
    name: what reports call it; the variable's name when it is collected.
    """

    family: ClassVar[str]
    takes_inputs: ClassVar[bool] = False  # whether further keywords are domains of inputs

    allow: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    timeout: float = 60.0
    name: str = ""
    file: str = field(default="", init=False)
    line: int = field(default=0, init=False)

    if not TYPE_CHECKING:  # type checkers see the generated __init__ and its keywords

        def __new__(cls, *_: Any, **options: Any) -> "Subject":
            """Refuse an unknown keyword with the nearest known one, unless it may be an input."""
            __tracebackhide__ = True
            known = {own.name for own in fields(cls) if own.init}
            for option in options if not cls.takes_inputs else ():
                if option not in known:
                    raise DeclarationError(
                        f"tg.{cls.__name__} has no option {option!r}.{did_you_mean(option, known)}"
                    )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check what all declarations share, and remember where this one stands."""
        __tracebackhide__ = True
        _check_excuses(self)
        _check_limits(self)
        if not self.timeout > 0:
            raise DeclarationError(
                f"tg.{type(self).__name__}(timeout={self.timeout}) leaves no time."
                " Give the seconds that one observation may take."
            )
        file, line = _caller()
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "line", line)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of invariants that judge this subject: its own, and memory if budgeted."""
        return (self.family, "memory") if self.memory_budget is not None else (self.family,)

    @property
    def is_log(self) -> bool:
        """Whether it is what was logged of a run: not all that judges a run can judge that."""
        return False

    @property
    def memory_budget(self) -> Budget | None:
        """The budget of this subject's memory, where it has one."""
        budget: Budget | None = getattr(self, "budget", None)
        return budget

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        return self.memory_budget.promise_names if self.memory_budget is not None else frozenset()

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        budget = self.memory_budget.promises if self.memory_budget is not None else {}
        return {**budget, **{f"limit:{name}": float(n) for name, n in self.limits.items()}}


def guard(function: F) -> F:
    """Mark a test function that returns a subject, so that its fixtures can build the subject."""
    function.__trainguard__ = True  # type: ignore[attr-defined]
    return function


def check_callable(kind: str, function: object) -> None:
    """Raise where the thing declared cannot be called."""
    if not callable(function):
        raise DeclarationError(
            f"tg.{kind} got {function!r}, which cannot be called."
            f" Pass the function itself{', or an nn.Module' if kind == 'Loss' else ''}."
        )


def check_word(option: str, words: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first word that is not known to an option."""
    for word in words:
        if word not in set(known):
            raise DeclarationError(f"{option} has {word!r}.{did_you_mean(str(word), known)}")


def parameters(function: Callable[..., Any]) -> set[str] | None:
    """Return the names a callable takes as keywords, or None where that cannot be known."""
    target = function if inspect.isclass(function) else getattr(function, "forward", function)
    try:
        accepted = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in accepted):
        return None
    return {p.name for p in accepted}


def required_names(function: Callable[..., Any]) -> set[str]:
    """Return the names that a callable cannot be called without, as far as can be known."""
    target = function if inspect.isclass(function) else getattr(function, "forward", function)
    try:
        accepted = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in accepted if p.kind in named and p.default is p.empty}


def is_strategy(value: object) -> bool:
    """Say whether a value is a Hypothesis strategy, without importing Hypothesis."""
    strategies = sys.modules.get("hypothesis.strategies")
    return strategies is not None and isinstance(value, strategies.SearchStrategy)


_EXAMPLES = {
    "allow": '{"NAME": "why it is so"}',
    "limits": '{"NAME": 0.1}',
    "inputs": '{"x": tg.real("B 4", -1, 1)}',
    "vary": '{"OPTION": tg.choice([1, 2])}',
}


def mapping_of(kind: str, option: str, value: object) -> dict[str, Any]:
    """Return what an option names, nothing for None; raises DeclarationError for a list, say."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DeclarationError(
            f"tg.{kind}({option}={value!r}) is no mapping. Write {option}={_EXAMPLES[option]}."
        )
    return dict(value)


def _check_excuses(subject: Subject) -> None:
    """Raise for excuses of unknown or inapplicable invariants, and for excuses without a reason."""
    mapping_of(type(subject).__name__, "allow", subject.allow)
    known = {made.name for made in of_families(subject.families)}
    for name, reason in subject.allow.items():
        if name not in known:
            told = f"names no {subject.family} invariant.{suggest_name(name, known)}"
            raise DeclarationError(f"allow={{{name!r}: ...}} {told}", f"--allow {name} {told}")
        if not isinstance(reason, str) or not reason.strip():
            told = "gives no reason. Say in a few words why it is so."
            wrong = f"allow={{{name!r}: {reason!r}}}"
            raise DeclarationError(f"{wrong} {told}", f"--allow {name} {told}")


def _check_limits(subject: Subject) -> None:
    """Raise for limits of unknown invariants and for limits that are no positive numbers."""
    mapping_of(type(subject).__name__, "limits", subject.limits)
    known = {made.name for made in of_families(subject.families)}
    for name, limit in subject.limits.items():
        if name not in known:
            raise DeclarationError(
                f"limits={{{name!r}: ...}} names no {subject.family} invariant."
                f"{suggest_name(name, known)}"
            )
        if not isinstance(limit, int | float) or not limit > 0:
            raise DeclarationError(
                f"limits={{{name!r}: {limit!r}}} is no limit. Give a number above zero."
            )


def check_device_type(kind: str, value: Any) -> None:
    """Raise for what is no type of device, such as one of several devices by its number."""
    if not isinstance(value, str) or not value.isalnum():
        raise DeclarationError(
            f"tg.{kind}(devices={value!r}) is no type of device: each process takes one of its own."
            " Give 'cpu' or 'cuda'."
        )


def _caller() -> tuple[str, int]:
    """Return the file and line of the nearest frame outside this package."""
    package = str(Path(__file__).parents[1])
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((package, "<string>")):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def variable_of(subject: Subject) -> str:
    """Return the name of the module's variable that a subject was declared as, or nothing."""
    for module in list(sys.modules.values()):
        names: dict[str, Any] = getattr(module, "__dict__", {})
        if names.get("__file__") == subject.file:
            for name, value in list(names.items()):
                if value is subject:
                    return name
    return ""
