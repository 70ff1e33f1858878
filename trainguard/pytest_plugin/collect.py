"""Subjects become collectors and invariants items, so that pytest treats them like any test."""

import inspect
import unittest
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FunctionType
from typing import Any, Final

import pytest

from trainguard.api.check import Broken
from trainguard.core.catalogue import Invariant
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.settings import DEVICES
from trainguard.events.trace import Trace
from trainguard.judging.judge import (
    Observations,
    applicable,
    check_excuses_apply,
    devices_present,
    verdict,
)
from trainguard.judging.verdict import Config, Verdict
from trainguard.pytest_plugin.curve_snapshots import keep_curves, with_pictures
from trainguard.pytest_plugin.item_record import (
    PROPERTY,
    SETTINGS,
    Entry,
    absent_device,
    account,
    crash,
    entry_of,
    fault_and_cause,
    rerun,
)
from trainguard.pytest_plugin.session_files import FILES
from trainguard.report.text import render, render_trace, render_verdict
from trainguard.subjects.subject import Subject

KNOWN: Final = "known from the baseline"
_FAILURE: Final = pytest.StashKey[BaseException | None]()


class SubjectCollector(pytest.Collector):
    """One declared subject; its items share what is observed of it."""

    def __init__(self, *, subject: Subject, **node: Any) -> None:
        super().__init__(**node)
        object.__setattr__(subject, "name", self.name)  # frozen for everyone but its collector
        self.subject = subject
        self.observations = Observations(self.config.stash[SETTINGS])
        self.shown: dict[str, str] = {}  # {what stopped an observation: the item that shows it}

    def collect(self) -> list["InvariantItem"]:
        """Make one item for each invariant that applies, device and dtype."""
        settings, present = self.config.stash[SETTINGS], devices_present()
        check_excuses_apply(self.subject, present)
        chosen = applicable(self.subject, settings, settings.devices or present)
        return [self._item(made, place) for made, place in chosen]

    def _item(self, invariant: Invariant, place: Config) -> "InvariantItem":
        """Make an item, its device and dtype in brackets where they matter."""
        name = f"{invariant.name}[{place}]" if str(place) else invariant.name
        # Told in full: from pytest 9.2 on, brackets in a name alone are not taken for parameters,
        # and --lf would not find the item again.
        nodeid = f"{self.nodeid}::{name}"
        return InvariantItem.from_parent(
            self, name=name, nodeid=nodeid, invariant=invariant, place=place
        )


class InvariantItem(pytest.Item):
    """
    One invariant of one subject on one device in one dtype.

    All the work is done in `setup`, so that an exception out of our own code is an *error* for
    pytest and never a failure of the subject. `runtest` only says what the verdict was.
    """

    parent: SubjectCollector

    def __init__(self, *, invariant: Invariant, place: Config, **node: Any) -> None:
        super().__init__(**node)
        self.subject, self.observations = self.parent.subject, self.parent.observations
        self.invariant, self.place = invariant, place
        self.verdict: Verdict | None = None
        self.fault: SubjectError | None = None
        self.entry: Entry = entry_of(self.parent.nodeid, self.subject, invariant, place)
        self.user_properties.append((PROPERTY, self.entry))
        self.add_marker("trainguard")
        if kind := place.device.partition(":")[0]:
            if kind not in DEVICES:  # it has registered itself
                self.config.addinivalue_line("markers", f"{kind}: a subject judged on it.")
            self.add_marker(kind)

    def setup(self) -> None:
        """Observe and judge; what the subject is to blame for is kept for `runtest`."""
        absent = absent_device(self.invariant, self.place, self.config.stash[SETTINGS])
        if absent:
            pytest.skip(absent)
        started = perf_counter()
        try:
            if self.invariant.probe == "curve":
                keep_curves(self, self.subject, self.observations)
            judged = verdict(
                self.subject, self.invariant, self.place, self.observations, rerun(self)
            )
            held = self.config.stash[FILES].hold(self.parent.nodeid, judged, self._trace)
            self.verdict = with_pictures(self, held)
            self.entry.update(account(self.verdict, self.config.stash[SETTINGS]))
        except SubjectError as fault:
            self._refer_to_first(fault)
            self.fault = fault
            told = fault_and_cause(self.subject, self.invariant, fault, rerun(self))
            self.config.stash[FILES].fail(self.parent.nodeid, self.subject, self.invariant, told)
            self.entry["outcome"] = "unobservable"
        except Exception as error:  # noqa: BLE001 whatever it is, it is ours
            raise crash(error, self.invariant) from None
        self.entry["seconds"] = round(perf_counter() - started, 3)

    def runtest(self) -> None:
        """Pass, fail with the whole report, or count as expected to fail where excused."""
        if self.fault is not None:
            raise self.fault
        assert self.verdict is not None, "setup either judges or keeps the fault"
        if self.verdict.outcome == "skipped":
            pytest.skip(self.verdict.reason)
        if self.verdict.outcome == "excused":
            pytest.xfail(self.verdict.reason)
        if self.verdict.outcome == "known":
            pytest.xfail(KNOWN)
        # With --runxfail, pytest.xfail does nothing, and an excuse excuses nothing.
        if self.verdict.outcome not in ("passed", "known"):
            raise Broken([self.verdict])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return exactly the report; the traceback is shown only where it is not the subject's."""
        error = excinfo.value
        if isinstance(error, SubjectError):
            return fault_and_cause(self.subject, self.invariant, error, rerun(self))
        if isinstance(error, Broken) and self.verdict is not None:
            return self._broken_text(self.verdict)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the place of the declaration, and the name for headlines."""
        return Path(self.subject.file), self.subject.line - 1, f"{self.parent.name}::{self.name}"

    def _broken_text(self, judged: Verdict) -> str:
        """Return the report of what broke; with -vv, the trace that shows it."""
        if judged.outcome == "excused":
            text = "\n\n".join(render(finding, judged) for finding in judged.findings)
        else:
            text = render_verdict(judged)
        if self.config.get_verbosity() < 2:
            return text
        return f"{text}\n\n{render_trace(self._trace(), self.invariant.probe)}"

    def _trace(self) -> Trace[Any]:
        """Return what was observed of the subject, which is observed once."""
        return self.observations.trace(self.subject, self.place, self.invariant)

    def _refer_to_first(self, fault: SubjectError) -> None:
        """Skip all but the first item that one fault stops: that one fails, and shows it whole."""
        first = self.parent.shown.setdefault(fault.sentence, self.nodeid)
        if first != self.nodeid:
            told = f"`{self.subject.name}` could not be observed, for the reason shown at {first}"
            pytest.skip(told)


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
            judged = verdict(subject, made, place, observations, rerun(item))
            trace = partial(observations.trace, subject, place, made)
            judged = with_pictures(item, item.config.stash[FILES].hold(item.nodeid, judged, trace))
        except SubjectError as fault:
            entry["outcome"] = "unobservable"
            told = fault_and_cause(subject, made, fault, rerun(item))
            item.config.stash[FILES].fail(item.nodeid, subject, made, told)
            return "\n\n".join([*texts, told])
        entry.update(account(judged, settings))
        if judged.fails:
            texts.append(render_verdict(judged))
    return "\n\n".join(texts)
