"""Probe: what a step takes, and what it took when its snapshot was blessed."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from trainguard.core.errors import SubjectError
from trainguard.core.files import write_whole
from trainguard.curves.store import file_name
from trainguard.events.trace import Usage
from trainguard.observe.memory import step
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.subjects.subject import variable_of

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

FOLDER: Final = "__snapshots__"
SUFFIX: Final = "memory"
OWNER: Final = "memory_matches_snapshot"


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield the step, then what is kept of it; a step that is blessed is kept as it is now."""
    declared = step.declared_step(observation)
    now = _take_snapshot(declared)
    file = _file(observation)
    if observation.settings.bless:
        _write(file, now)
    kept = _read_snapshot(file)
    place = "/".join(file.parts[-3:])
    if kept is None:
        unreadable = "no snapshot can be read from it" if file.exists() else ""
        yield Usage(quantity="no snapshot", place=place, detail=unreadable, sizes=declared.sizes)
        return
    yield Usage(
        quantity="snapshot", place=place, measured=float(now["peak"]),
        reference=float(kept["peak"]), sizes=declared.sizes, how=now["how"],
        detail=_unlike(kept, now),
    )  # fmt: skip
    for name in sorted({*now["categories"], *kept["categories"]}):
        yield Usage(
            quantity="category", place=name, measured=float(now["categories"].get(name, 0)),
            reference=float(kept["categories"].get(name, 0)),
        )  # fmt: skip


def _take_snapshot(declared: DeclaredStep) -> dict[str, Any]:
    """Return what is kept of a step: plain values, the same at every run."""
    seen = step.whole(declared)
    peak = seen.timeline.peak()
    return {
        "peak": peak.total,
        "categories": {name: held for name, held in sorted(peak.categories.items()) if held},
        "sizes": dict(declared.sizes),
        "how": seen.how,
        "torch": torch.__version__,
    }


def _unlike(kept: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what of a snapshot is about another step, so that the two cannot be compared."""
    for key in ("sizes", "how"):
        if kept[key] != now[key]:
            return f"it was blessed for {_words(kept[key])}, and this is {_words(now[key])}"
    return ""


def _words(value: Any) -> str:
    """Write sizes, or where a number comes from."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={size}" for name, size in value.items()) or "no sizes"
    return f"what is {value}"


def _file(observation: "MemoryObservation") -> Path:
    """Return the file of a snapshot: beside the declaration, named after its variable."""
    subject, target = observation.subject, observation.budget.device
    declared = Path(subject.file)
    owner = f"{variable_of(subject) or subject.name}.{OWNER}"
    name = file_name(owner, f"{target}-{observation.dtype}", SUFFIX)
    return declared.parent / FOLDER / declared.stem / name


def _read_snapshot(file: Path) -> dict[str, Any] | None:
    """Return what is kept in a file; None where there is none, or none that could be used."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or not {"peak", "categories", "sizes", "how"} <= set(kept):
        return None
    parts = kept["categories"].values() if isinstance(kept["categories"], dict) else [None]
    known = all(type(size) is int and 0 <= size <= sys.maxsize for size in [kept["peak"], *parts])
    return kept if known and kept["peak"] else None


def _write(file: Path, told: dict[str, Any]) -> None:
    """Write a snapshot in one go: whoever reads meanwhile has the old file or the new one."""
    try:
        write_whole(file, json.dumps(told, indent=2) + "\n")
    except OSError as error:
        raise SubjectError(
            f"its snapshot {file.name} could not be written: {error.strerror}",
            "see to it that there is room for it, and bless it again",
        ) from None
