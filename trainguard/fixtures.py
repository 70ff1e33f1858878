"""The fixture `guard`: record a training inside an ordinary test, and judge it there."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pytest

from trainguard.account import PROPERTY, SETTINGS, account, entry_of, from_here
from trainguard.archive import INVARIANT
from trainguard.catalogue import catalogue
from trainguard.judge import Broken, Config, Observations, Verdict, verdict
from trainguard.keeping import keep_curves, with_pictures
from trainguard.loop import Loop, Run
from trainguard.recording import FAILING, Recording
from trainguard.session import read_settings
from trainguard.settings import Settings

_SILENCE = 'guard.curve(..., allow={"NAME": "<reason>"})'


class Guard:
    """What the fixture `guard` offers to a test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def record(
        self,
        name: str = "",
        *,
        steps: int | None = None,
        probe: bool = True,
        allow: Mapping[str, str] | None = None,
        **promises: Any,
    ) -> "JudgedRecording":
        """
        Record the training that a with-block does; at its end, the test fails with what is broken.

        allow: {invariant: reason}, what is known and excused; a stale excuse fails.
        The other arguments are those of `tg.record`. Settings are those of the pytest run.
        """
        __tracebackhide__ = True
        options = {"name": name, "steps": steps, "probe": probe, **promises}
        return JudgedRecording(self._item, allow or {}, options)

    def curve(
        self,
        columns: str | Sequence[str],
        run: Callable[..., Any],
        *,
        name: str = "",
        **options: Any,
    ) -> None:
        """
        Run a training and hold columns of it against their snapshots; the test fails outside.

        columns: "loss", or several. name: tells several curves of one test apart.
        The other options are those of `tg.Loop`: `steps`, `seeds`, `arguments`, `limits`, ...
        """
        __tracebackhide__ = True
        item, config = self._item, self._item.config
        settings = config.stash[SETTINGS] if SETTINGS in config.stash else read_settings(config)
        curve = (columns,) if isinstance(columns, str) else tuple(columns)
        loop = Loop(run, curve=curve, name=name or item.name, **options)
        observations = Observations(settings)
        keep_curves(item, loop, observations, name)
        made = next(made for made in catalogue("loop") if made.name == INVARIANT)
        rerun = f"pytest {shlex.quote(from_here(item))}"
        judged = verdict(loop, made, Config(), observations, rerun, _SILENCE)
        judged = with_pictures(item, judged)
        _tell(item, loop, [judged], settings)
        if judged.outcome in FAILING:
            raise Broken([judged])


class JudgedRecording(Recording):
    """A recording that is judged when its block is left, unless the block itself failed."""

    silence = 'guard.record(..., allow={"NAME": "<reason>"})'

    def __init__(
        self, item: pytest.Item, allow: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        __tracebackhide__ = True
        super().__init__("guard.record", **options)
        self._item = item
        self.run = self._declared(allow)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Stop recording and judge; raises Broken where something is broken."""
        __tracebackhide__ = True
        swallowed = super().__exit__(kind, error, trace)
        if error is None or swallowed:
            self._judge()
        return swallowed

    def _judge(self) -> None:
        """Judge what was recorded, and tell the closing section, where there is one."""
        __tracebackhide__ = True
        item, config = self._item, self._item.config
        settings = config.stash[SETTINGS] if SETTINGS in config.stash else read_settings(config)
        rerun = f"pytest {shlex.quote(from_here(item))}"
        verdicts = self._judged(self.run, settings, rerun)
        _tell(item, self.run, verdicts, settings)
        failed = [judged for judged in verdicts if judged.outcome in FAILING]
        if failed:
            raise Broken(failed)


def _tell(item: pytest.Item, run: Run, verdicts: Sequence[Verdict], settings: Settings) -> None:
    """Tell the closing section what became of each invariant, where there is such a section."""
    for judged in verdicts if SETTINGS in item.config.stash else ():
        owner = f"{item.nodeid}::{run.name}"
        entry = entry_of(owner, run, judged.invariant, judged.config)
        item.user_properties.append((PROPERTY, entry | account(judged, settings)))
