"""The fixture `guard`: record or measure what happens inside an ordinary test, and judge it."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from trainguard.api.budget_block import BudgetBlock, check_allocates
from trainguard.api.check import Broken
from trainguard.api.recording import OnFinding, Recording
from trainguard.core.catalogue import catalogue
from trainguard.core.errors import DeclarationError
from trainguard.core.settings import Settings
from trainguard.curves.store import INVARIANT
from trainguard.judging.judge import Observations, verdict
from trainguard.judging.verdict import Config, Verdict
from trainguard.pytest_plugin.curve_snapshots import keep_curves, with_pictures
from trainguard.pytest_plugin.item_record import PROPERTY, SETTINGS, account, entry_of, from_here
from trainguard.pytest_plugin.session import read_settings
from trainguard.subjects.loop import Loop
from trainguard.subjects.relation import Relation
from trainguard.subjects.subject import Subject

_SILENCE = 'guard.curve(..., allow={"NAME": "<reason>"})'


class Guard:
    """What the fixture `guard` offers to a test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._relations: list[Relation] = []

    def what_if(
        self, edit: Callable[[Any], Any], then: Callable[[Any, Any], Any], *, name: str = ""
    ) -> None:
        """
        Declare what must hold in the recordings that follow, were a step's batch edited.

        The arguments are those of `tg.Relation`; without a name it has that of the edit.
        """
        __tracebackhide__ = True
        self._relations.append(Relation(name or edit.__name__, edit=edit, then=then))

    def record(
        self,
        name: str = "",
        *,
        steps: int | None = None,
        probe: bool = True,
        allow: Mapping[str, str] | None = None,
        on_finding: OnFinding | None = None,
        **promises: Any,
    ) -> "JudgedRecording":
        """
        Record the training that a with-block does; at its end, the test fails with what is broken.

        allow: {invariant: reason}, what is known and excused; a stale excuse fails.
        The other arguments are those of `tg.record`. Settings are those of the pytest run.
        """
        __tracebackhide__ = True
        declared = [*self._relations, *promises.pop("relations", ())]
        promises |= {"relations": declared} if declared else {}
        options = {"name": name, "steps": steps, "probe": probe, "on_finding": on_finding}
        return JudgedRecording(self._item, allow or {}, {**options, **promises})

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
        item = self._item
        settings, rerun = _conditions(item)
        curve = (columns,) if isinstance(columns, str) else tuple(columns)
        loop = Loop(run, curve=curve, name=name or item.name, **options)
        observations = Observations(settings)
        keep_curves(item, loop, observations, name)
        made = next(made for made in catalogue("loop") if made.name == INVARIANT)
        judged = verdict(loop, made, Config(), observations, rerun, _SILENCE)
        _report_verdicts(item, loop, (with_pictures(item, judged),), settings)

    def budget(
        self, name: str = "", *, allow: Mapping[str, str] | None = None, **limits: Any
    ) -> "JudgedBlock":
        """
        Follow the tensors of a with-block; at its end, the test fails where it held too much.

        limits: `peak`, and categories such as `activations`, as for `tg.Budget`.
        allow: {invariant: reason}, what is known and excused; a stale excuse fails.
        """
        __tracebackhide__ = True
        return JudgedBlock(self._item, "guard.budget", name, allow or {}, limits)


class JudgedRecording(Recording):
    """A recording that is judged when its block is left, unless the block itself failed."""

    silence = 'guard.record(..., allow={"NAME": "<reason>"})'

    def __init__(
        self, item: pytest.Item, allow: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        __tracebackhide__ = True
        super().__init__("guard.record", **options)
        self._item = item
        self._thorough = _conditions(item)[0].profile == "thorough"
        self.run = self._declare_run(allow)

    def __exit__(self, *raised: Any) -> bool:
        """Stop recording and judge; raises Broken where something is broken."""
        __tracebackhide__ = True
        swallowed = super().__exit__(*raised)
        if raised[1] is None or swallowed:
            self._judge()
        return swallowed

    def _judge(self) -> None:
        """Judge what was recorded, and tell the closing section, where there is one."""
        __tracebackhide__ = True
        settings, rerun = _conditions(self._item)
        _report_verdicts(self._item, self.run, self._judge_run(self.run, settings, rerun), settings)


class JudgedBlock(BudgetBlock):
    """A block that is judged when it is left, unless it failed for something else than memory."""

    def __init__(
        self,
        item: pytest.Item,
        kind: str,
        name: str,
        allow: Mapping[str, str],
        limits: Mapping[str, Any],
    ) -> None:
        __tracebackhide__ = True
        super().__init__(kind, name or getattr(item, "originalname", item.name), allow, limits)
        self.silence = f'{kind}(..., allow={{"NAME": "<reason>"}})'
        self._item = item

    def __exit__(self, *raised: Any) -> None:
        """Stop following and judge; raises Broken where something is broken."""
        __tracebackhide__ = True
        super().__exit__(*raised)
        if raised[1] is None or self.ran_out:
            check_allocates(self)
            settings, rerun = _conditions(self._item)
            _report_verdicts(self._item, self.body, self.judge(settings, rerun), settings)


def make_budget_block(item: pytest.Item, marker: pytest.Mark) -> JudgedBlock:
    """Return the block of a whole test under `@pytest.mark.memory_budget(...)`."""
    kind = "@pytest.mark.memory_budget"
    if marker.args:
        sentence = f"{kind}({marker.args[0]!r}) names no limit. Write {kind}(peak='300 MiB')."
        raise pytest.fail.Exception(sentence, pytrace=False)
    options = {"name": "", "allow": {}, **marker.kwargs}
    try:
        return JudgedBlock(item, kind, options.pop("name"), options.pop("allow"), options)
    except DeclarationError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _conditions(item: pytest.Item) -> tuple[Settings, str]:
    """Return the settings that a test is judged under, and the command that runs it again."""
    config = item.config
    settings = config.stash[SETTINGS] if SETTINGS in config.stash else read_settings(config)
    return settings, f"pytest {shlex.quote(from_here(item))}"


def _report_verdicts(
    item: pytest.Item, subject: Subject, verdicts: tuple[Verdict, ...], settings: Settings
) -> None:
    """Tell the closing section, where there is one, and raise Broken where something is broken."""
    __tracebackhide__ = True
    for judged in verdicts if SETTINGS in item.config.stash else ():
        entry = entry_of(f"{item.nodeid}::{subject.name}", subject, judged.invariant, judged.config)
        item.user_properties.append((PROPERTY, entry | account(judged, settings)))
    failed = [judged for judged in verdicts if judged.fails]
    if failed:
        raise Broken(failed)
