"""What is told of one judgement: to the closing section, and to whoever reads the report."""

import json
import shlex
from typing import Any, Final

import pytest

from trainguard.core.catalogue import Invariant
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.settings import Settings
from trainguard.judging.judge import why_absent
from trainguard.judging.verdict import Config, Verdict, observed_as
from trainguard.report.text import render_cause, render_crash, render_fault, render_note
from trainguard.subjects.subject import Subject

SETTINGS: Final = pytest.StashKey[Settings]()
# Reports carry an Entry under it: a dict while an item runs, JSON for whoever reads the report.
PROPERTY: Final = "trainguard"
Entry = dict[str, Any]


def entry_of(owner: str, subject: Subject, invariant: Invariant, place: Config) -> Entry:
    """Return what the closing section is told of an item before it is judged."""
    observed = observed_as(subject, place)
    return {
        "subject": owner,
        "name": subject.name,
        "invariant": invariant.name,
        "device": observed.device,
        "observed": str(observed),
    }


def read_entry(value: object) -> Entry:
    """Return an entry that a report carries, as it was or as JSON."""
    entry: Entry = json.loads(value) if isinstance(value, str) else value  # type: ignore[assignment]
    return entry


def account(judged: Verdict, settings: Settings) -> Entry:
    """Return what the closing section is told of a verdict, in plain values."""
    noted = judged.outcome in ("passed", "broken", "known") and not settings.strict
    notes = [render_note(f, judged.invariant) for f in judged.notes]
    return {
        "outcome": judged.outcome,
        "why": judged.reason if judged.outcome == "skipped" else "",
        "points": judged.points,
        "seconds": round(judged.seconds, 3),
        "notes": notes if noted else [],
    }


def absent_device(invariant: Invariant, place: Config, settings: Settings) -> str:
    """Say which device an item needs and this machine lacks, or nothing."""
    wanted = {place.device} if place.device else set()
    if "devices" in invariant.needs:
        wanted |= set(settings.devices)
    try:
        return next(filter(None, map(why_absent, sorted(wanted))), "")
    except DeclarationError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def crash(error: Exception, invariant: Invariant | None = None) -> BaseException:
    """Return what to raise during setup, where pytest asks no item how to show an exception."""
    return pytest.fail.Exception(render_crash(error, invariant), pytrace=False)


def rerun(item: pytest.Item) -> str:
    """Return the command that judges an item again, with the options that change its verdict."""
    option, seed = item.config.option, item.config.stash[SETTINGS].seed
    flags = [
        "--trainguard",
        *(["--trainguard-strict"] if option.trainguard_strict else []),
        *([f"--trainguard-profile={p}"] if (p := option.trainguard_profile) else []),
        *([f"--hypothesis-seed={seed}"] if seed else []),
        *([f"--trainguard-baseline={shlex.quote(b)}"] if (b := option.trainguard_baseline) else []),
    ]
    return f"pytest {' '.join(flags)} {shlex.quote(from_here(item))}"


def from_here(item: pytest.Item) -> str:
    """Return an item's node id as it is written in the folder in which pytest was started."""
    file, *names = item.nodeid.split("::")
    path, folder = item.config.rootpath / file, item.config.invocation_params.dir
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return "::".join([shown.as_posix(), *names])


def fault_and_cause(
    subject: Subject, invariant: Invariant, fault: SubjectError, command: str
) -> str:
    """Return why a subject could not be observed, and the user's own traceback underneath."""
    parts = (render_fault(subject, invariant, fault, command), render_cause(fault))
    return "\n\n".join(part for part in parts if part)
