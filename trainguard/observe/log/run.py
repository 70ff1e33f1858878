"""The columns of one run, put together from its rows and files."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import isfinite, nan
from operator import lt
from typing import cast

from trainguard.observe.log.column import LoggedColumn
from trainguard.observe.log.find import Source
from trainguard.observe.log.roles import EPOCH, LOSS, NORM, RATE, STEP, TIME, Meaning, meaning_of
from trainguard.observe.log.row import Lost, Row

_MOST = 256  # columns that are kept
_LOST = 16
_TOGETHER = 512  # rows that are passed on together: a million one by one take half as long again
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # in names, what no terminal shows
_COUNTERS = (STEP, EPOCH, TIME)


@dataclass(slots=True)
class LoggedRun:
    """
    The columns of a run by name.

    sources: its files. unit: what its rows are counted in: "step", "epoch" or "row".
    names: of all columns, judged or not. total: the steps it is to have, 0 where not told.
    lost: allocations that failed, with the file and the last step before.
    """

    sources: list[Source]
    columns: dict[str, LoggedColumn] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    unit: str = "step"
    total: int = 0
    lost: list[tuple[Lost, float]] = field(default_factory=list)

    def best(self, role: str) -> LoggedColumn | None:
        """Return the column that is plainest for a role; the fullest of equal ones."""
        own = [c for c in self.columns.values() if c.meaning.role == role and c.points]
        return min(own, key=lambda c: (c.meaning.rank, -c.count), default=None)

    @property
    def main(self) -> LoggedColumn | None:
        """The column that tells the steps: the loss, else the rate, else the norm."""
        return self.best(LOSS) or self.best(RATE) or self.best(NORM)

    def continues(self, other: "LoggedRun") -> bool:
        """Say whether another file goes on where this one was, or has other columns of the run."""
        if not set(self.columns) & set(other.columns):
            return True
        mine, theirs = self.main, other.main
        if mine is None or theirs is None or mine.name != theirs.name:
            return False
        return theirs.points[0].step > mine.points[0].step

    def is_beginning_of(self, other: "LoggedRun") -> bool:
        """Say whether another file has all of this one, and more: an older state of the same."""
        mine, theirs = self.main, other.main
        if mine is None or theirs is None or mine.name != theirs.name:
            return False
        same = mine.points[0][:2] == theirs.points[0][:2]
        return same and theirs.points[-1].step >= mine.points[-1].step

    def follow(self, other: "LoggedRun") -> None:
        """Put the columns of a later file behind these, or beside them."""
        for name, column in other.columns.items():
            if name in self.columns:
                self.columns[name].follow(column)
            else:
                self.columns[name] = column
        self.sources += other.sources
        self.names.update(other.names)
        self.lost += other.lost
        self.total = max(self.total, other.total)


def read_runs(
    sources: Iterable[Source], chosen: dict[str, str], told: Callable[[int], None]
) -> Iterator[LoggedRun]:
    """Yield the runs that some files hold: what has one folder and format is put together."""
    groups: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        groups.setdefault((source.folder, source.format), []).append(source)
    for own in groups.values():
        files = [_read(source, chosen, told) for source in own]
        yield from _join([run for run in files if run.columns or run.lost] or files[:1])


def _join(files: list[LoggedRun]) -> Iterator[LoggedRun]:
    """Yield the runs of some files, each with all files of it."""
    files.sort(key=_begin)
    runs: list[LoggedRun] = []
    for file in files:
        if any(file.is_beginning_of(run) for run in runs):
            continue  # a later state of the same run, as of another checkpoint, has all of it
        older = next((run for run in runs if run.is_beginning_of(file)), None)
        if older is not None:
            runs.remove(older)
            runs.append(file)
            continue
        run = next((run for run in reversed(runs) if run.continues(file)), None)
        if run is None:
            runs.append(file)
        else:
            run.follow(file)
    yield from runs


def _begin(run: LoggedRun) -> tuple[float, float, str]:
    """Return what files are ordered by: their time where they tell it, else their first step."""
    main = run.main
    if main is None:
        return float("inf"), 0.0, str(run.sources[0].path)
    time = main.points[0].time
    return (time if isfinite(time) else 0.0), main.points[0].step, str(run.sources[0].path)


def _read(source: Source, chosen: dict[str, str], told: Callable[[int], None]) -> LoggedRun:
    """Read one file."""
    run = LoggedRun([source])
    sorter = _Sorter(run, source, {name: role for role, name in chosen.items()})
    rows, count = source.reader(chosen)(source.path), 0
    while together := [*islice(rows, _TOGETHER)]:
        for kind, alike in groupby(together, type):
            if kind is Row:
                sorter.sort(cast("Iterable[Row]", alike))
            else:
                lost = islice(cast("Iterator[Lost]", alike), _LOST - len(run.lost))
                run.lost += [(each, max(sorter.counter.step, 0.0)) for each in lost]
        told(count := count + len(together))
    for column in run.columns.values():
        column.finish()
    run.unit = sorter.counter.unit
    return run


@dataclass(slots=True)
class _Counter:
    """
    Counts the steps of rows: as they say, or by their epochs, or one by one.

    A counter that begins again with each epoch goes on from where it was.
    """

    unit: str = ""
    step: float = -1.0
    _epoch: float = nan
    _offset: float = 0.0
    _stride: float = 1.0

    def count_on(
        self, said: Sequence[float | None], epochs: Sequence[float | None]
    ) -> Sequence[float]:
        """Return the steps of rows as they say, where all only count on; nothing where not."""
        steps = [step for step in said if step is not None]
        whole = len(steps) == len(said) and not self._offset
        if not whole or not self.step < steps[0] or not all(map(lt, steps, steps[1:])):
            return ()
        if steps[-1] >= 1e15:
            return ()
        before = steps[-2] if len(steps) > 1 else self.step
        self._stride, self.step, self.unit = steps[-1] - before, steps[-1], "step"
        known = (epoch for epoch in reversed(epochs) if epoch is not None and isfinite(epoch))
        self._epoch = next(known, self._epoch)
        return steps

    def count(self, row: Row) -> float:
        """Return the step of a row."""
        said = row.step
        if said is None and self.unit != "step":
            said = row.epoch
        if said is None or not isfinite(said) or abs(said) > 1e15:
            self.unit = self.unit or "row"
            self.step += self.unit == "row"
            return max(self.step, 0.0)
        if row.step is not None:
            self.unit = "step"
        else:
            self.unit = self.unit or "epoch"
        epoch = row.epoch if row.epoch is not None and isfinite(row.epoch) else self._epoch
        step = said + self._offset
        if row.step is not None and step < self.step and epoch > self._epoch:
            self._offset += self.step + self._stride - step
            step = said + self._offset
        elif step > self.step >= 0:
            self._stride = step - self.step
        self.step, self._epoch = step, epoch
        return step


@dataclass(slots=True)
class _Sorter:
    """Sorts the values of rows into columns; what means nothing is only named."""

    run: LoggedRun
    source: Source
    chosen: dict[str, str]
    counter: _Counter = field(default_factory=_Counter)
    _known: dict[str, LoggedColumn | None] = field(default_factory=dict)

    def sort(self, rows: Iterable[Row]) -> None:
        """Sort some rows; those in a row that have the same names, as most have, at once."""
        known = self._known
        for names, same in groupby(rows, lambda row: tuple(row.values)):
            columns = [known[n] if n in known else self._make(n) for n in names]
            if any(column is not None for column in columns):
                self._add([*same], columns)

    def _add(self, rows: list[Row], columns: list[LoggedColumn | None]) -> None:
        """Count rows of the same names, and add their values to the columns of these."""
        values, said, epochs, times, coarse, totals = zip(*rows, strict=True)
        steps = self.counter.count_on(said, epochs) or [*map(self.counter.count, rows)]
        every = zip(*(own.values() for own in values), strict=True)
        for column, own in zip(columns, every, strict=True):
            if column is not None:
                column.add(steps, own, times)
        for name, half in (pair for zeros in filter(None, coarse) for pair in zeros.items()):
            told = self._known.get(name)
            if told is not None:
                told.coarse = max(told.coarse, half)
        for row in rows if any(totals) else ():
            if row.total and (row.epoch is None or self.source.format == "json document"):
                self.run.total = row.total  # a bar within an epoch tells the epoch's

    def _make(self, name: str) -> LoggedColumn | None:
        """Make the column of a name that is met for the first time, if it means something."""
        full = _HIDDEN.sub("?", self.source.prefix + name)
        meaning = Meaning(self.chosen[name]) if name in self.chosen else meaning_of(full)
        if meaning is not None and name not in self.chosen and meaning.role in self.chosen.values():
            meaning = None  # another one was named for it
        column = None
        if meaning is not None and meaning.role not in _COUNTERS and len(self.run.columns) < _MOST:
            made = LoggedColumn(full, meaning, str(self.source.path))
            column = self.run.columns.setdefault(full, made)
        if len(self._known) < 16 * _MOST:
            self._known[name] = column
        if len(self.run.names) < _MOST:
            self.run.names[full] = None
        return column
