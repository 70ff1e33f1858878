"""
Curves as snapshots of syrupy: its files, its flags, its report.

One file for each curve and device family, and one for a version of torch where the common one does
not hold. What belongs to a device or version that this session did not run on is left alone.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

from trainguard.core.errors import SubjectError
from trainguard.core.files import write_whole
from trainguard.curves.curve import Curve, Unreadable
from trainguard.curves.store import (
    INVARIANT,
    SUFFIX,
    Outcome,
    file_name,
    file_owner,
    read_text,
    short_path,
)
from trainguard.curves.tolerance import departs
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.pytest_plugin.item_record import SETTINGS

# At the end of the name of a snapshot.
_NAME = re.compile(
    r"-(?P<device>[a-z][a-z0-9_]*)(?:-torch(?P<torch>[\d.]+))?$"
)  # at the end of a name
_SEAT: Final = pytest.StashKey["Seat"]()
# {(folder, owner): the names under which its snapshots were looked for}, of this session
_LOOKED_FOR: Final[dict[tuple[str, str], set[str]]] = {}


class Weighed(str):
    """The text of a curve of which it is known already whether it fits its snapshot."""

    __slots__ = ("fits",)
    fits: bool


class CurveExtension(SingleFileSnapshotExtension):
    """Keeps each curve in a file of its own, `test_train[loss-cpu].curve`."""

    _write_mode = WriteMode.TEXT
    file_extension = SUFFIX

    @classmethod
    def get_snapshot_name(cls, *, test_location: Any, index: Any = 0) -> str:
        """Return the name of a file: syrupy's own leaves characters out."""
        if not isinstance(index, str):
            return super().get_snapshot_name(test_location=test_location, index=index)
        return file_name(test_location.snapshot_name, index, SUFFIX).removesuffix(f".{SUFFIX}")

    @classmethod
    def matches_test_location(cls, *, test_location: Any, snapshot_location: str) -> bool:
        """Say whether a file belongs to a test, by the name that we gave it."""
        (folder, owner), _ = _owner_and_name(Path(snapshot_location))
        ours = file_owner(test_location.snapshot_name_parametrized)
        here = (cls.dirname(test_location=test_location), ours) == (folder, owner)
        return here or super().matches_test_location(
            test_location=test_location, snapshot_location=snapshot_location
        )

    def serialize(self, data: Any, **_: Any) -> str:
        """Return the text of a curve."""
        return data.to_text() if isinstance(data, Curve) else data

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Say whether a curve is in the band of its snapshot."""
        if isinstance(serialized_data, Weighed):
            return serialized_data.fits
        try:
            kept, found = Curve.from_text(snapshot_data), Curve.from_text(serialized_data)
        except Unreadable:
            return False
        return departs(kept, found) is None

    def discover_snapshots(self, *, test_location: Any, **options: Any) -> SnapshotCollections:
        """Return the snapshots of a folder that this session would have used, were they not old."""
        # Other extensions are told to leave our files alone (see `plugin`), and we are not.
        ignored = options.get("ignore_extensions") or ()
        options["ignore_extensions"] = [each for each in ignored if each != SUFFIX]
        config = getattr(test_location.item, "config", None)
        settings = None if config is None else config.stash.get(SETTINGS, None)
        judges_all = settings is not None and not settings.select and not settings.ignore
        kept = SnapshotCollections()
        for found in super().discover_snapshots(test_location=test_location, **options):
            if found.location.endswith(f".{SUFFIX}") and _is_due(found.location, judges_all):
                kept.add(found)
        return kept

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_: Any) -> str | None:
        """Return the text of a file, whatever it is: what is no curve is refused by its reader."""
        return read_text(Path(snapshot_location))

    @classmethod
    def write_snapshot_collection(
        cls, *, snapshot_collection: SnapshotCollection, **_: Any
    ) -> None:
        """Write a curve in one go: whoever reads meanwhile has the old file or the new one."""
        text = str(next(iter(snapshot_collection)).data)
        write_whole(Path(snapshot_collection.location), text)


class Seat(pytest.Function):
    """What syrupy, which knows test functions alone, takes an item of ours for."""

    stands_for: pytest.Item
    obj: Any = None

    @property
    def nodeid(self) -> str:
        """The node id of the item."""
        return self.stands_for.nodeid

    def __hash__(self) -> int:
        """Return the hash of the item."""
        return hash(self.stands_for)

    @classmethod
    def of(cls, item: pytest.Item) -> pytest.Item:
        """Return the seat of an item; a test function needs none."""
        if isinstance(item, pytest.Function):
            return item
        if _SEAT not in item.stash:
            seat = item.stash[_SEAT] = cls.__new__(cls)  # nodes are made by their parents alone
            seat.stands_for, seat.obj = item, vars(item)["invariant"].judge
            seat.name, seat.path, seat.stash = item.name, item.path, item.stash
            seat.config = item.config
        return item.stash[_SEAT]


class SnapshotArchive:
    """
    The snapshots of the curves of one item, kept by syrupy.

    prefix: what the names begin with, where one item has several runs.
    """

    def __init__(
        self, item: pytest.Item, objection: Callable[[Trace[Event]], str], prefix: str = ""
    ) -> None:
        self.objection, self._prefix = objection, prefix
        self._option: Any = item.config.option
        self._session: Any = vars(item.config)["_syrupy"]
        self._location = PyTestLocation(Seat.of(item))

    def read(self, name: str, /) -> str | None:
        """Return the text of a snapshot, or None where there is none."""
        file = self._file(name)
        owner, whole = _owner_and_name(file)
        _LOOKED_FOR.setdefault(owner, set()).add(whole)
        return read_text(file)

    def place(self, name: str, /) -> str:
        """Return the file of a snapshot, from its folder of snapshots on."""
        return short_path(self._file(name))

    def blesses(self, missing: bool, /) -> bool:
        """Say whether `--snapshot-update` or its sister for new ones was given."""
        only_new = getattr(self._option, "update_new_snapshots_only", False)
        return bool(self._option.update_snapshots or (missing and only_new))

    def settle(self, name: str, text: str, outcome: Outcome, /) -> None:
        """Let syrupy count a comparison, and write the text of a blessed curve."""
        assertion = SnapshotAssertion(
            session=self._session,
            extension_class=CurveExtension,
            test_location=self._location,
            update_snapshots=outcome == "blessed",
        )
        weighed = Weighed(text)
        weighed.fits = outcome == "fits"
        written = assertion(name=f"{self._prefix}{name}") == weighed
        fault = assertion.executions[0].exception
        if outcome == "blessed" and not written and isinstance(fault, OSError):
            raise SubjectError(
                f"its snapshot {self.place(name)} could not be written: {fault.strerror}",
                "see to it that there is room for it, and bless it again",
            )
        if outcome == "blessed" and not written and fault is not None:
            raise fault

    def _file(self, name: str) -> Path:
        """Return the file of a snapshot."""
        index = f"{self._prefix}{name}"
        return Path(CurveExtension.get_location(test_location=self._location, index=index))


def _owner_and_name(file: Path) -> tuple[tuple[str, str], str]:
    """Return whose snapshot a file is, with its folder, and the name that it is kept under."""
    owner, _, name = file.name.removesuffix(f".{SUFFIX}").rpartition("[")
    return (str(file.parent), owner), name.removesuffix("]")


def _is_due(location: str, judges_all: bool) -> bool:
    """Say whether a snapshot would be used in this session, if anything still asked for it."""
    owner, name = _owner_and_name(Path(location))
    if owner[1].endswith(f".{INVARIANT}") and not judges_all:
        return False
    every = [own for names in _LOOKED_FOR.values() for own in names]
    asked = [_NAME.search(own) for own in _LOOKED_FOR.get(owner, every)]
    of = _NAME.search(name)
    if of is None or name in _LOOKED_FOR.get(owner, ()):
        return True
    made_for = of["torch"] or None
    return any(
        own["device"] == of["device"] and made_for in (None, own["torch"])
        for own in asked
        if own is not None
    )
