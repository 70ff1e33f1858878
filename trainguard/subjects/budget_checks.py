"""Check a budget against the subject that it is given to: its sizes, its switch, what is judged."""

from collections.abc import Collection, Mapping
from typing import Any

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.budget import Budget
from trainguard.subjects.subject import Subject

_OF_MODELS = ("using", "averaged", "powers", "saving", "headroom")  # never of a training run
_OF_OPTIMIZERS = ("using", "averaged")  # never of a loss


def check_budgeted(
    subject: Subject,
    dimensions: Collection[str],
    arguments: Mapping[str, Any],
    accepted: Collection[str] | None,
) -> None:
    """
    Raise DeclarationError for a budget that this subject cannot be held to.

    dimensions: of its inputs. arguments: what its factory is called with. accepted: the names of
    all that the factory takes; None where that cannot be known.
    """
    __tracebackhide__ = True
    budget: Any = getattr(subject, "budget", None)
    if budget is None:
        return
    kind = f"tg.{type(subject).__name__}"
    if not isinstance(budget, Budget):
        raise DeclarationError(
            f"{kind}(budget={budget!r}) is no budget. Write budget=tg.Budget(peak='23 GiB')."
        )
    _check_options(kind, subject, budget)
    known = {*dimensions, *arguments, *(accepted or ())}
    for option, names in (("at", budget.at), ("powers", budget.powers)):
        for name in names:
            if name not in known and accepted is not None:
                raise DeclarationError(
                    f"{kind}(budget=tg.Budget({option}={{{name!r}: ...}})): {subject.name} has"
                    f" neither a dimension nor an argument {name!r}.{did_you_mean(name, known)}"
                )
    for name, size in budget.at.items():
        if name in dimensions and not _is_size(size):
            raise DeclarationError(
                f"tg.Budget(at={{{name!r}: {size!r}}}) is no size. Give a whole number above zero."
            )
    _check_sizes_that_grow(budget, dimensions, arguments)


def _check_options(kind: str, subject: Subject, budget: Budget) -> None:
    """Raise for what a budget says that is never judged on this kind of subject."""
    if budget.per_element is not None and subject.family != "loss":
        raise DeclarationError(
            f"{kind}(budget=tg.Budget(per_element=...)): only a loss is judged by element."
            " Declare the loss alone, as a tg.Loss."
        )
    unused = {"loop": _OF_MODELS, "loss": _OF_OPTIMIZERS}.get(subject.family, ())
    for option in unused:
        if getattr(budget, option):
            what = "a training run, which is made as it is" if unused is _OF_MODELS else "a loss"
            raise DeclarationError(
                f"{kind}(budget=tg.Budget({option}=...)) says nothing about {what}."
                " Declare the model, as a tg.Model."
            )
    if budget.saving is not None:
        _check_saving(kind, subject, budget.against)


def _check_saving(kind: str, subject: Subject, against: Any) -> None:
    """Raise for a saving where there is nothing to save against."""
    if against is None and getattr(subject, "checkpoint", None) is None:
        raise DeclarationError(
            f"{kind}(budget=tg.Budget(saving=...)) does not say what is saved against."
            " Give tg.Model(checkpoint=...), or saving=..., against=<another subject>."
        )
    judged = isinstance(against, Subject) and against.family in ("model", "loss")
    if against is not None and (not judged or against is subject):
        raise DeclarationError(
            f"tg.Budget(against={against!r:.60}) is no other tg.Model or tg.Loss."
            " Give the subject that takes more memory."
        )


def _check_sizes_that_grow(
    budget: Budget, dimensions: Collection[str], arguments: Mapping[str, Plain]
) -> None:
    """Raise for a power of what is no size: an argument that is no whole number above zero."""
    given = {**arguments, **budget.at}
    for name in budget.powers:
        if name in given and name not in dimensions and not _is_size(given[name]):
            raise DeclarationError(
                f"tg.Budget(powers={{{name!r}: ...}}): the argument {name}={given[name]!r} is no"
                " size that could be doubled. Name a whole number above zero."
            )


def _is_size(value: Any) -> bool:
    """Say whether a value is a whole number above zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
