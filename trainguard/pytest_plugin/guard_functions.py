"""Functions under `@tg.guard`: tests that return a subject, so that fixtures can build it."""

import inspect
import unittest
from types import FunctionType
from typing import Final

import pytest

from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.judging.judge import (
    Observations,
    applicable,
    check_excuses_apply,
    devices_present,
    verdict,
)
from trainguard.pytest_plugin.curve_snapshots import keep_curves, with_pictures
from trainguard.pytest_plugin.item_record import (
    PROPERTY,
    SETTINGS,
    absent_device,
    account,
    crash,
    entry_of,
    fault_and_cause,
    rerun,
)
from trainguard.report.text import render_verdict
from trainguard.subjects.subject import Subject

_FAILURE: Final = pytest.StashKey[BaseException | None]()


def is_guard(obj: object) -> bool:
    """Say whether an object is a function under `@tg.guard`."""
    return isinstance(obj, FunctionType) and "__trainguard__" in vars(obj)


def judge_function(item: pytest.Function) -> None:
    """
    Call a function under `@tg.guard` and judge what it returns, once its fixtures are there.

    One item judges all invariants: its fixtures may be gone by the next one, so that an item for
    each would observe the subject anew each time. Called during setup for the same reason as
    `InvariantItem.setup`: what is raised here is an error.
    """
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        pytest.fail(
            f"@tg.guard cannot judge {item.nodeid}, a method of a unittest.TestCase. Make it a"
            " function, or a method of a plain class.",
            pytrace=False,
        )
    item.stash[_FAILURE] = None
    try:
        text = _judge_all(item, _call_guard(item))
    except DeclarationError as error:
        text = str(error)
    except _Raised as raised:
        item.stash[_FAILURE] = raised.error
        return
    except Exception as error:  # noqa: BLE001 whatever it is, it is ours
        raise crash(error) from None
    if text:
        item.stash[_FAILURE] = pytest.fail.Exception(text, pytrace=False)


def raise_what_was_judged(item: pytest.Function) -> None:
    """Fail a function under `@tg.guard` with what `judge_function` found."""
    __tracebackhide__ = True
    failure = item.stash[_FAILURE]
    if failure is not None:
        raise failure


class _Raised(Exception):
    """Carries what the team's function raised past what our own code may raise."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _call_guard(item: pytest.Function) -> Subject:
    """Call a function with its fixtures; raises where it does not return a subject."""
    wanted = inspect.signature(item.obj).parameters
    given = {name: item.funcargs[name] for name in wanted if name in item.funcargs}
    try:
        subject = item.obj(**given)
    except DeclarationError:
        raise
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 the team's, told as such
        raise _Raised(error) from None
    if not isinstance(subject, Subject):
        raise DeclarationError(
            f"@tg.guard: {item.originalname} returned {subject!r:.60}, which is no subject."
            " Return a tg.Loss, a tg.Model or another one."
        )
    return subject


def _judge_all(item: pytest.Function, subject: Subject) -> str:
    """Judge every invariant that applies, and return the reports of all that fail."""
    settings = item.config.stash[SETTINGS]
    check_excuses_apply(subject, devices_present())
    observations = Observations(settings)
    keep_curves(item, subject, observations)
    texts: list[str] = []
    for made, place in applicable(subject, settings, settings.devices or devices_present()):
        entry = entry_of(item.nodeid, subject, made, place)
        item.user_properties.append((PROPERTY, entry))
        absent = absent_device(made, place, settings)
        if absent:
            entry.update(outcome="skipped", why=absent)
            continue
        try:
            judged = with_pictures(item, verdict(subject, made, place, observations, rerun(item)))
        except SubjectError as fault:
            entry["outcome"] = "unobservable"
            return "\n\n".join([*texts, fault_and_cause(subject, made, fault, rerun(item))])
        entry.update(account(judged, settings))
        if judged.fails:
            texts.append(render_verdict(judged))
    return "\n\n".join(texts)
