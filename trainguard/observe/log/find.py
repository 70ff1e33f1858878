"""The files of finished runs below some paths, and the format of each."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from trainguard.core.errors import DeclarationError
from trainguard.core.names import EVALUATION, TRAINING
from trainguard.observe.log import json_lines, mlflow, printed, tables, tensorboard, trainer_state
from trainguard.observe.log.row import Lost, Row
from trainguard.observe.log.text import encoding_of, is_text, text_of

Reader = Callable[[Path], Iterator[Row | Lost]]
_TRACE: Final = b'{"subject"'
_PACKED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_START = 8192  # bytes by which a format is known
_MOST = 10_000  # files of a folder
_LOGS = (".log", ".txt", ".out", ".err", ".stdout", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_OURS = ("trace", "json document", "JSON lines", "TensorBoard", "table", "MLflow", "output")
_ONE_EACH = ("MLflow", "table")  # formats of which a folder may have a file for each column


@dataclass(frozen=True, slots=True)
class Source:
    """
    A file of a run: its format, what reads it, and the folder that stands for the run.

    prefix: what its columns are called by, where the folder is one of an evaluation.
    """

    path: Path
    format: str
    folder: str = ""
    prefix: str = ""

    def reader(self, chosen: dict[str, str]) -> Reader:
        """Return what reads it; `chosen` has the columns that were named."""
        plain: dict[str, Reader] = {"TensorBoard": tensorboard.rows, "MLflow": mlflow.rows}
        told = {
            "table": tables.rows,
            "JSON lines": json_lines.rows,
            "json document": trainer_state.rows,
            "output": printed.rows,
        }
        return plain.get(self.format) or partial(told[self.format], chosen=chosen)


def is_log(path: Path) -> bool:
    """Say whether a file is a log by its name, whatever is in it."""
    return path.suffix.lower() in _LOGS or "tfevents" in path.name or path.suffix == ".wandb"


def find_sources(paths: Iterable[str | Path]) -> list[Source]:
    """Return the logs that some paths are or hold; raises where one is or holds none."""
    found: dict[Path, Source] = {}
    for path in map(Path, paths):
        folder = is_there(path) and path.is_dir()
        sources = [*_in_folder(path)] if folder else [_of_file(path)]
        if not sources:
            raise DeclarationError(
                f"{path} is a folder without logs that can be read. Give the files, or the folder"
                " of a run."
            )
        for source in sources:
            found.setdefault(source.path.resolve(), source)
    return list(found.values())


def _of_file(path: Path) -> Source:
    """Return the log that a file is; raises where it is none."""
    try:
        format_ = format_of(path)
    except OSError as error:
        raise DeclarationError(f"{path} cannot be read: {error.strerror}.") from None
    if format_ in _OURS:
        return Source(path, format_)
    raise DeclarationError(f"{path} {format_}")


def _in_folder(folder: Path) -> Iterator[Source]:
    """Yield the logs below a folder; links to folders are not followed."""
    seen = 0
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            seen += 1
            if seen > _MOST:
                return
            path = Path(where) / name
            if not _may_be_log(path):
                continue
            try:
                format_ = format_of(path)
            except OSError:
                continue
            if format_ in _OURS:
                yield _place(path, format_)


def _may_be_log(path: Path) -> bool:
    """Say whether a file of a folder may be a log, by its name."""
    if path.suffix == ".json":
        return any(word in path.name for word in ("trainer_state", "history"))
    return path.suffix in _LOGS or "tfevents" in path.name or "metrics" in path.parts[:-1]


def _place(path: Path, format_: str) -> Source:
    """Say which run a file belongs to, by its folder."""
    folder, prefix = path.parent, ""
    if format_ == "MLflow" or "plots" in path.parts:
        while folder.name and folder.name != "metrics" and "metrics" in folder.parts:
            folder = folder.parent
    elif folder.name.startswith("checkpoint-"):
        folder = folder.parent
    elif folder.name.lower() in EVALUATION | TRAINING:
        folder, prefix = folder.parent, f"{folder.name}/"
    return Source(path, format_, str(folder), prefix)


def is_there(path: Path) -> bool:
    """Say whether a path leads to anything; one that is too long does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def format_of(path: Path) -> str:
    """Return the format of a file, one of `_OURS`, or a sentence that says why it is no log."""
    if not is_there(path):
        return "is not there. Give the log of a run, or the folder with it."
    if not path.is_file():
        return "is no file. Give the log of a run, or the folder with it."
    with path.open("rb") as opened:
        start = opened.read(_START)
    if not start.strip():
        return "is empty. Give the log of a run that made some steps."
    if path.suffix == ".wandb":
        return (
            "is W&B's own format, which nothing but wandb reads. Export it:"
            " `wandb.Api().run(...).history().to_csv(...)`, or `wandb sync` and then the site."
        )
    if start.startswith(_PACKED):
        return "is compressed. Unpack it, and give what was in it."
    if start.startswith(_TRACE):
        return "trace"
    if tensorboard.is_event_file(start) or ("tfevents" in path.name and len(start) > 12):
        return "TensorBoard"
    return _format_of_text(start) or (
        "is neither a table, JSON, a TensorBoard event file nor text. Give the log of a run."
    )


def _format_of_text(start: bytes) -> str:
    """Return the format of a text by its first lines; nothing where it is no text."""
    if b"\0" in start and not is_text(start):
        return ""
    text = text_of(start, encoding_of(start))
    lines = [line for line in text.splitlines() if line.strip()]
    lines = lines[:-1] if len(start) == _START and len(lines) > 1 else lines
    if not lines:  # a log that was cut at its beginning while it was written begins with nulls
        return "" if start.strip(b"\0") else "output"
    first = lines[0].lstrip()
    if first[:1] == "{" and (read := json_lines.parse(first)):
        kinds = {*map(type, read.values())}
        whole = "log_history" in read or (list in kinds and not kinds & {int, float})
        return "json document" if len(lines) == 1 and whole else "JSON lines"
    if first[:1] in ("{", "[") and (len(first) == 1 or first[1:].lstrip()[:1] in ("{", '"', "")):
        return "json document"
    if mlflow.is_metric(lines[:20]):
        return "MLflow"
    return "table" if tables.is_table(lines[:20]) else "output"
