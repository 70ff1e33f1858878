"""Record a training inside a program, and judge it: `tg.record()`."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final, Self

from trainguard.api.check import Broken
from trainguard.api.verdicts import Verdicts
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.finding import Finding
from trainguard.core.notebook import cell_of
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.judging.judge import check_steps, judge_run
from trainguard.judging.live import LiveJudge
from trainguard.report.cell import render_cell
from trainguard.subjects.loop import Run

OnFinding = Callable[[str, Finding], object]
PROMISES: Final = ("batch", "falls", "average", "frozen", "trainable", "limits", "relations")
_PACKAGE = str(Path(__file__).parents[1])


def record(
    name: str = "",
    *,
    steps: int | None = None,
    probe: bool = True,
    on_finding: OnFinding | None = None,
    **promises: Any,
) -> "Recording":
    """
    Record the training that a with-block does, so that it can be judged afterwards.

    steps: leave the block after so many optimizer steps, cleanly.
    probe: whether live objects may be copied and tried out where watching is not enough.
    on_finding: called with the name of an invariant and a Finding while the block still trains, as
        soon as that can be told; the block is left, cleanly, where it returns True.
    promises: `batch`, `falls`, `average`, `frozen`, `trainable`, `limits` and `relations`, as for
        `tg.Loop`.
    """
    __tracebackhide__ = True
    options = {"steps": steps, "probe": probe, **promises}
    return Recording("tg.record", name, on_finding=on_finding, **options)


class Recording:
    """
    A with-block under the recorder; what was seen can be judged once the block is left.

    Made by `tg.record()`. `trace` holds what was seen, `verdicts` what became of each invariant,
    `findings` what was found, and `check()` raises `tg.Broken` where something is broken.
    """

    silence = '.check(allow={"NAME": "<reason>"})'
    _thorough = False  # whether edits of steps are drawn

    def __init__(
        self, kind: str, name: str = "", on_finding: OnFinding | None = None, **options: Any
    ) -> None:
        __tracebackhide__ = True
        self._kind, self._on_finding = kind, on_finding
        self._live: LiveJudge | None = None
        self._options = {"name": name or _caller(), **options}
        self._trace: Trace[Any] | None = None
        self.run = self._declare_run({})
        self._recorder: Any = None

    def __repr__(self) -> str:
        """Say what there is, and how to ask for what was found, to whoever shows it in a cell."""
        if self._trace is None:
            return f"{self._kind}({self.run.name!r}), {'recording' if self._recorder else 'new'}"
        steps = self._trace.conditions.get("steps", 0)
        told = "check() judges them, findings lists what was found"
        return f"{self._kind}({self.run.name!r}), {steps} steps recorded: {told}"

    def _repr_html_(self) -> str:
        """Show in a notebook what was found, once the block is left and trained."""
        if self._trace is None or not self._trace.conditions.get("steps"):
            return f"<code>{escape(repr(self))}</code>"
        return render_cell(repr(self).partition(":")[0], self.verdicts)

    def __enter__(self) -> Self:
        """Start to record."""
        if self._recorder is not None:
            raise RuntimeError(f"{self._kind}(...) was entered before: make another one")
        from trainguard.observe.loop.live_looks import LiveLooks
        from trainguard.observe.loop.recorder import Recorder  # late: it imports torch

        run = self.run
        self._recorder = Recorder(
            run.name,
            steps=run.steps,
            probe=run.probe,
            promises=run.promises,
            relations=run.relations,
            thorough=self._thorough,
        )
        if self._on_finding is not None:
            self._live = LiveJudge(run, Settings(), "", self.silence)
            self._recorder.live = LiveLooks(self._look)
        self._recorder.__enter__()
        return self

    def __exit__(self, *raised: Any) -> bool:
        """Stop recording, and keep the trace; the block's own exception goes on its way."""
        swallowed = bool(self._recorder.__exit__(*raised))
        self._trace = self._recorder.trace
        return swallowed

    @property
    def trace(self) -> Trace[Any]:
        """What was seen, once the block is left."""
        if self._trace is None:
            state = "has not begun" if self._recorder is None else "is still recording"
            raise RuntimeError(f"{self._kind}(...) {state}: ask after the with-block")
        return self._trace

    @property
    def verdicts(self) -> Verdicts:
        """What became of each invariant, with nothing excused; raises nothing for a broken one."""
        return self._judge_run(self.run, Settings())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was found, notes included."""
        return tuple(finding for judged in self.verdicts for finding in judged.findings)

    def check(
        self,
        *,
        allow: Mapping[str, str] | None = None,
        select: Iterable[str] = (),
        ignore: Iterable[str] = (),
        strict: bool = False,
    ) -> Verdicts:
        """
        Return the verdicts, or raise Broken with the whole report where something is broken.

        Raises SubjectError where no training step was made, so that nothing can be judged.
        """
        __tracebackhide__ = True
        options = {"select": tuple(select), "ignore": tuple(ignore)}
        settings = Settings(strict=strict).with_values(f"{self._kind}().check", options)
        return self._check_run(self._declare_run(allow or {}), settings)

    def _check_run(self, run: Run, settings: Settings) -> Verdicts:
        """Judge what was seen, and raise where something is broken or an excuse is stale."""
        __tracebackhide__ = True
        verdicts = self._judge_run(run, settings)
        failed = [judged for judged in verdicts if judged.fails]
        if failed:
            raise Broken(failed)
        return verdicts

    def _judge_run(self, run: Run, settings: Settings, rerun: str = "") -> Verdicts:
        """Judge what was seen, if there was a training to see."""
        __tracebackhide__ = True
        check_steps(run, self.trace)
        whole = judge_run(run, self.trace, settings, rerun, self.silence)
        return Verdicts(whole if self._live is None else self._live.merge(whole))

    def _look(self, steps: int, trace: Trace[Any]) -> str:
        """Call back with what is broken by now; say why the block is to be left, or nothing."""
        found = self._live.judge(steps, trace) if self._live is not None else []
        tell = self._on_finding or (lambda *_: False)
        answers = [tell(one.invariant.name, f) for one in found for f in one.breaches]
        return "on_finding asked for it" if any(answer is True for answer in answers) else ""

    def _declare_run(self, allow: Mapping[str, str]) -> Run:
        """Return what is promised and excused; raises DeclarationError under the name we go by."""
        __tracebackhide__ = True
        options = dict(self._options)
        for option in options:
            if option not in ("name", "steps", "probe", *PROMISES):
                near = did_you_mean(option, ("name", "steps", "probe", *PROMISES))
                raise DeclarationError(f"{self._kind} has no option {option!r}.{near}")
        try:
            return Run(allow=allow, **options)
        except DeclarationError as error:
            raise DeclarationError(str(error).replace("tg.Run(", f"{self._kind}(")) from None


def _caller() -> str:
    """Return the name of the function outside this package that records, or of its file."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "training"
    name, file = frame.f_code.co_name, frame.f_code.co_filename
    return name if name.isidentifier() else cell_of(file) or Path(file).stem
