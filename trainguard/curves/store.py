"""Where the snapshots of curves are: read from files, or through whoever else keeps them."""

from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, Protocol
from urllib.parse import quote

from trainguard.events.base import Event
from trainguard.events.trace import Trace

FOLDER: Final = "__snapshots__"
SUFFIX: Final = "curve"
INVARIANT: Final = "curve_matches_snapshot"
Outcome = Literal["fits", "fails", "blessed"]
_UNSAFE: Final = '%\\/?*:|"<>'  # what some system has no files with, and the sign of an escape
# Bytes of the two parts of a name. Systems allow 255 in all; the rest is for a draft beside it.
_LONGEST_OWNER: Final = 120
_LONGEST_NAME: Final = 60
_DIGEST: Final = 16  # digits that stand for what was cut


class Archive(Protocol):
    """What keeps snapshots, each under a name such as `loss-cpu`."""

    def read(self, name: str, /) -> str | None:
        """Return the text of a snapshot, or None where there is none."""

    def place(self, name: str, /) -> str:
        """Return the file of a snapshot, as reports write it."""

    def blesses(self, missing: bool, /) -> bool:
        """Say whether a curve that does not fit, or has no snapshot yet, is to be blessed."""

    def objection(self, trace: Trace[Event], /) -> str:
        """Return what else is wrong with a run, so that it must not be blessed; or nothing."""

    def settle(self, name: str, text: str, outcome: Outcome, /) -> None:
        """Count a comparison, and write the text of a blessed curve."""


class Files:
    """
    Snapshots as files beside the declaration, read and never written: the way without syrupy.

    file: of the declaration. owner: what its snapshots are named after. prefix: what the names
    begin with, where one owner has several runs.
    """

    def __init__(self, file: Path, owner: str, prefix: str = "") -> None:
        self._folder, self._owner = file.parent / FOLDER / file.stem, owner
        self._prefix = prefix

    def read(self, name: str) -> str | None:
        """Return the text of a snapshot, or None where there is none."""
        return read_text(self._file(name))

    def place(self, name: str) -> str:
        """Return the file of a snapshot, from its folder of snapshots on."""
        return short_path(self._file(name))

    def blesses(self, _missing: bool, /) -> bool:
        """Bless nothing: that is done by `--snapshot-update`."""
        return False

    def objection(self, _trace: Trace[Event], /) -> str:
        """Return nothing: nothing is blessed."""
        return ""

    def settle(self, _name: str, _text: str, _outcome: Outcome, /) -> None:
        """Count nothing."""

    def _file(self, name: str) -> Path:
        """Return the file of a snapshot."""
        return self._folder / file_name(self._owner, f"{self._prefix}{name}", SUFFIX)


def file_name(owner: str, name: str, suffix: str) -> str:
    """Return the name of the file of a snapshot: no two snapshots have the same."""
    own = _escape(name, f"{_UNSAFE}[]")
    own = f"{_digest(own)}{own[-_LONGEST_NAME:]}" if len(own) > _LONGEST_NAME else own
    return f"{file_owner(owner)}[{own}].{suffix}"


def file_owner(owner: str) -> str:
    """Return what the files of an owner begin with."""
    own = _escape(owner, _UNSAFE)
    return f"{own[:_LONGEST_OWNER]}{_digest(own)}" if len(own) > _LONGEST_OWNER else own


def _escape(text: str, unsafe: str) -> str:
    """Write what a file cannot be named as %XX: left out, it would make two names one."""
    told = (c if c not in unsafe and c.isascii() and c.isprintable() else _quote(c) for c in text)
    return "".join(told)


def _quote(character: str) -> str:
    """Return the bytes of a character as %XX."""
    return quote(character, safe="", errors="surrogatepass")


def _digest(text: str) -> str:
    """Return a few digits that tell long texts apart of which a part is cut off."""
    return f"~{sha256(text.encode()).hexdigest()[:_DIGEST]}~"


def read_text(file: Path) -> str | None:
    """
    Return the text of a file, what is no text in it replaced; None where there is no file.

    Of a folder, or a link that leads to itself, it is what is wrong with it: that is no curve.
    """
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error.strerror}\n"


def short_path(file: Path) -> str:
    """Return a file from its folder of snapshots on."""
    return "/".join(file.parts[-3:])
