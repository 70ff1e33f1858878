"""What an item does about curves: where their snapshots are, when they are blessed, the picture."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import pytest

from trainguard.core.settings import Settings
from trainguard.curves.store import INVARIANT, Files
from trainguard.events.curve import Kept
from trainguard.judging.judge import Observations, applicable, verdict
from trainguard.judging.verdict import Config, Verdict
from trainguard.subjects.loop import Loop
from trainguard.subjects.subject import Subject

PICTURE: Final = "curve"  # the property of a report that names a picture
_PREFIXES: Final = pytest.StashKey[set[str]]()


def keep_curves(
    item: pytest.Item, subject: Subject, observations: Observations, name: str | None = None
) -> None:
    """
    Let the curves of a subject be held against the snapshots of an item.

    name: tells several runs of one item apart, with a number where it is the same.
    """
    if not isinstance(subject, Loop) or not subject.curve:
        return
    made: Any = observations.of(subject, Config())
    prefix = "" if name is None else _prefix(item, name)
    if not hasattr(item.config, "_syrupy"):  # not installed, or told to stay away
        owner = ".".join([*item.nodeid.split("::")[1:-1], item.name])  # as syrupy has it
        made.archive = Files(item.path, owner, prefix)
        return
    from trainguard.pytest_plugin.syrupy_store import SnapshotArchive

    made.archive = SnapshotArchive(item, lambda _: objection(subject, observations), prefix)


def seat_curves(
    config: pytest.Config, items: Iterable[pytest.Item], selected: bool = False
) -> None:
    """Tell syrupy, which asks test functions alone, which of our items were collected or chosen."""
    session = vars(config).get("_syrupy")
    curves = [i for i in items if getattr(getattr(i, "invariant", None), "name", "") == INVARIANT]
    if session is None or not curves:
        return
    from trainguard.pytest_plugin.syrupy_store import Seat

    tell = session.select_items if selected else session.collect_items
    tell([Seat.of(item) for item in curves])


def objection(subject: Loop, observations: Observations) -> str:
    """Return what else is broken in the run of a loop, so that its curves must not be blessed."""
    probes = ("run",) if subject.seeds else ("run", "rerun")
    for made, place in applicable(subject, Settings(), ()):
        if made.name != INVARIANT and made.probe in probes:
            judged = verdict(subject, made, place, observations)
            if judged.outcome == "broken":
                return f"{made.name} is broken in the same run"
    return ""


def with_pictures(item: pytest.Item, judged: Verdict) -> Verdict:
    """Return a verdict with pictures of the curves that left their band, where any can be drawn."""
    shown = [f.event for f in judged.findings if f.curve and isinstance(f.event, Kept)]
    if judged.outcome != "broken" or not shown or find_spec("matplotlib") is None:
        return judged
    from trainguard.curves.picture import draw

    folder, files = _folder(item), []
    for kept in shown:
        file = folder / f"{kept.column.replace(' of ', '.')}.png"
        draw(kept, f"{judged.subject.name}: {kept.column}", file)
        item.user_properties.append((PICTURE, str(file)))
        files.append(str(file))
    return replace(judged, pictures=tuple(files))


def extras_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    """Return the pictures of a report as pytest-html takes them."""
    from base64 import b64encode

    files = [Path(str(value)) for name, value in report.user_properties if name == PICTURE]
    return [
        {
            "name": file.stem,
            "format_type": "image",
            "content": b64encode(file.read_bytes()).decode("ascii"),
            "mime_type": "image/png",
            "extension": "png",
        }
        for file in files
        if file.is_file()
    ]


def _prefix(item: pytest.Item, name: str) -> str:
    """Return what the names of snapshots begin with in one more run of an item."""
    taken = item.stash.setdefault(_PREFIXES, set())
    numbered = (".".join(filter(None, (name, str(again)))) for again in count(1))
    told = next(told for told in chain([name], numbered) if told not in taken)
    taken.add(told)
    return f"{told}-" if told else ""


def _folder(item: pytest.Item) -> Path:
    """Return a temporary folder of an item: the test's own, where it has one."""
    own = getattr(item, "funcargs", {}).get("tmp_path")
    if own is not None:
        return Path(own)
    factory = vars(item.config).get("_tmp_path_factory")  # what the fixture of that name returns
    if factory is not None:
        return Path(factory.mktemp("curves"))
    return Path(tempfile.mkdtemp(prefix="trainguard-"))
