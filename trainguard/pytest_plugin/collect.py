"""Subjects become collectors and invariants items, so that pytest treats them like any test."""

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from trainguard.api.check import Broken
from trainguard.core.catalogue import Invariant
from trainguard.core.errors import SubjectError
from trainguard.judging.judge import (
    Observations,
    applicable,
    check_excuses_apply,
    devices_present,
    verdict,
)
from trainguard.judging.variant import Config
from trainguard.judging.verdict import Verdict
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
from trainguard.report.text import render, render_trace, render_verdict
from trainguard.subjects.subject import Subject


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
        for marker in ("trainguard", place.device):
            if marker:
                self.add_marker(marker)

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
            self.verdict = with_pictures(self, judged)
            self.entry.update(account(self.verdict, self.config.stash[SETTINGS]))
        except SubjectError as fault:
            self.fault = fault
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
        # With --runxfail, pytest.xfail does nothing, and an excuse excuses nothing.
        if self.verdict.outcome != "passed":
            raise Broken([self.verdict])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return exactly the report; the traceback is shown only where it is not the subject's."""
        error = excinfo.value
        if isinstance(error, SubjectError):
            return self._fault_text(error)
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
        trace = self.observations.trace(self.subject, self.place, self.invariant)
        return f"{text}\n\n{render_trace(trace, self.invariant.probe)}"

    def _fault_text(self, fault: SubjectError) -> str:
        """Return what stopped the observation: whole for the first item, then one line."""
        first = self.parent.shown.setdefault(fault.sentence, self.nodeid)
        if first != self.nodeid:
            return (
                f"{self.invariant.name}: `{self.subject.name}` could not be observed, for the"
                f" reason shown at\n  {first}"
            )
        return fault_and_cause(self.subject, self.invariant, fault, rerun(self))
