"""Watches what the script says: numbers that it prints, and those that it hands to loggers."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import Any

import torch
from torch import nn

from trainguard.core.log_line import Number, is_accuracy
from trainguard.core.names import EVALUATION, words_of
from trainguard.events import loop as events
from trainguard.events.base import Event
from trainguard.observe.loop.watch.said.loggers import Loggers, numbers_given
from trainguard.observe.loop.watch.said.tee import LineParser, Tee
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

MOST = 2048  # numbers that are kept of a run
_MOST_NAMES = 256
_MOST_IN_STEP = 64  # of one name
_Row = tuple[int, int, float, float, str]  # step, clock, value, rounding, source
Said = tuple[float, float, str, str]  # value, rounding, source, name

_SELDOM = 32  # steps without a word after which a channel is listened to in any case
_FETCHED = 64  # numbers on an accelerator that are waited for together


@dataclass(slots=True)
class _LoggedColumn:
    """
    The numbers said under one name, each with its step, clock, rounding and source.

    stride: those said just before and just after one step in so many are kept, so that the steps
        which they belong to are among those that a long run keeps.
    step, count: the latest step that has numbers, and how many it has.
    """

    kept: list[_Row] = field(default_factory=list)
    stride: int = 1
    step: int = -1
    count: int = 0

    def wants(self, step: int) -> bool:
        """Say whether to keep one more number at a step."""
        if step % self.stride > 1 or (step == self.step and self.count >= _MOST_IN_STEP):
            return False
        self.count = self.count + 1 if step == self.step else 1
        self.step = step
        return True

    def thin(self) -> None:
        """Keep about half of the numbers."""
        before = len(self.kept)
        self.stride = max(4, 2 * self.stride)  # 2 would leave out nothing
        self.kept = [row for row in self.kept if row[0] % self.stride <= 1]
        if len(self.kept) == before:
            self.kept = self.kept[::2]


class LoggedValues(Watcher):
    """
    The Logged events: of the two output streams, and of the loggers that are imported.

    says_accuracy: whether a number was ever said under a name that may mean an accuracy.
    says_evaluation: whether one was under a name that is about an evaluation.
    at_said: what is called once the training's numbers of a line, or of a call of a logger, were
        taken down.
    """

    makes = ("Logged",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._columns: dict[tuple[str, str], _LoggedColumn] = {}
        self._total = 0
        self._lines: list[LineParser] = []
        self._far: list[tuple[_LoggedColumn, _Row, torch.Tensor]] = []
        self._loggers: Loggers | None = None
        self._until = 0  # the step after the latest that was recorded
        self._heard_at: dict[str, tuple[int, bool]] = {}
        self.says_accuracy = self.says_evaluation = False
        self.at_said: list[Callable[[], None]] = []

    def install(self, patches: Patches) -> None:
        """Listen to both streams and to the loggers that are there."""
        patches.replace(sys, "stdout", lambda stream: self._tee(stream, "stdout"))
        patches.replace(sys, "stderr", lambda stream: self._tee(stream, "stderr"))
        self._loggers = Loggers(patches, self._listens, self._on_log)
        self._loggers.look()

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look for loggers that were imported in the meantime."""
        if self._loggers is not None:
            self._loggers.look()

    def after_step(self, window: Window) -> Columns:
        """Listen to what is said of the step, also where the next one is not recorded."""
        self._until = self.recorder.steps + 1
        if self._loggers is not None:
            self._loggers.look()
        return {}

    def so_far(self) -> Iterable[Event]:
        """Return what was kept by now, in the order in which it was said; never more than MOST."""
        self._fetch()
        columns = list(self._columns.items())  # another thread may say something in the meantime
        said = [_event(key, row) for key, column in columns for row in column.kept]
        return sorted(said, key=lambda event: event.clock)

    def finish(self) -> Iterable[Event]:
        """Hand over what was kept, the lines that no end of line has finished among it."""
        for lines in self._lines:
            lines.finish()
        for event in self.so_far():
            self.recorder.keep(event)
        return ()

    def names(self) -> list[str]:
        """Return the names under which numbers were said."""
        return [name for _, name in self._columns]

    def said_after(self, clock: int) -> Iterator[Said]:
        """Yield the numbers that were said after an instant."""
        for (_, name), column in self._columns.items():
            for _, said, value, rounding, source in reversed(column.kept):
                if said <= clock:
                    break
                yield value, rounding, source, name

    def _tee(self, stream: Any, channel: str) -> Any:
        """Return what stands in the place of a stream, if there is one."""
        if stream is None:
            return None
        listens, tell = partial(self._listens, channel), partial(self._on_print, channel)
        lines = LineParser(self.recorder, listens, tell)
        self._lines.append(lines)
        return Tee(stream, lines, self._hear)

    @shielded
    def _hear(self, lines: LineParser, text: str) -> None:
        """Take in what was written to a stream."""
        lines.take(text)

    @shielded
    def _listens(self, channel: str) -> bool:
        """Say whether to look at what is said: of steps that are recorded, and what is rare."""
        step = self.recorder.steps
        last, seldom = self._heard_at.get(channel, (-_SELDOM, True))
        if step != last:
            seldom = step - last >= _SELDOM
            self._heard_at[channel] = step, seldom
        patches = self.recorder.patches
        return patches.active and (patches.watching or step <= self._until or seldom)

    def _on_print(self, channel: str, numbers: list[Number], step: int, clock: int) -> None:
        """Take the numbers of a line that was printed."""
        source = ""
        for number in numbers:
            column = self._column(channel, number.name)
            if column is not None and column.wants(step):
                source = source or caller(2)
                self._keep(column, (step, clock, number.value, number.rounding, source))
        self._tell(source)

    @shielded
    def _on_log(self, channel: str, given: list[Any]) -> None:
        """Take the numbers that were handed to a logger in one call."""
        said = list(numbers_given(given))
        step, clock, source = self.recorder.steps, self.recorder.tick() if said else 0, ""
        for name, value, rounding in said:
            column = self._column(channel, name)
            if column is None or not column.wants(step):
                continue
            source = source or caller(2)
            if isinstance(value, torch.Tensor):
                self._far.append((column, (step, clock, nan, rounding, source), value))
            else:
                self._keep(column, (step, clock, value, rounding, source))
        self._tell(source)
        if len(self._far) >= _FETCHED:
            self._fetch()

    def _tell(self, source: str) -> None:
        """Tell that numbers were taken down, unless a thread beside the training says them."""
        for tell in self.at_said if source and not self.recorder.thread.is_elsewhere() else ():
            tell()

    def _column(self, channel: str, name: str) -> _LoggedColumn | None:
        """Return the numbers of one name, or None where there are too many names already."""
        column = self._columns.get((channel, name))
        if column is None and len(self._columns) < _MOST_NAMES:
            column = self._columns[channel, name] = _LoggedColumn()
            self.says_accuracy |= is_accuracy(name)
            self.says_evaluation |= not EVALUATION.isdisjoint(words_of(name))
        return column

    def _keep(self, column: _LoggedColumn, row: _Row) -> None:
        """Add a number, and thin out the longest column where there are too many."""
        column.kept.append(row)
        self._total += 1
        while self._total > MOST:
            longest = max(self._columns.values(), key=lambda column: len(column.kept))
            self._total -= len(longest.kept)
            longest.thin()
            self._total += len(longest.kept)

    def _fetch(self) -> None:
        """Wait for the numbers that are on an accelerator, for many of them at once."""
        far, self._far = self._far, []
        for device in {tensor.device for _, _, tensor in far}:
            own = [entry for entry in far if entry[2].device == device]
            numbers = torch.stack([tensor.reshape(()).float() for _, _, tensor in own]).tolist()
            for (column, (step, clock, _, rounding, source), _), value in zip(
                own, numbers, strict=True
            ):
                self._keep(column, (step, clock, value, rounding, source))


def _event(key: tuple[str, str], row: _Row) -> events.Logged:
    """Make the event of a number."""
    step, clock, value, rounding, source = row
    return events.Logged(
        name=key[1],
        value=value,
        step=step,
        rounding=rounding,
        clock=clock,
        channel=key[0],
        source=source,
    )
