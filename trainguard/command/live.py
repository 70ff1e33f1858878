"""What `trainguard run` does while a script still trains: tell, alert, stop, and keep the trace."""

import json
import math
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from trainguard.command.output import say, write_file
from trainguard.events.trace import Trace
from trainguard.judging.live import LiveJudge
from trainguard.judging.verdict import Verdict
from trainguard.report.json import finding_lines
from trainguard.report.text import render_verdict

_APART = 2.0  # seconds between two copies of the trace, so that a killed run leaves a recent one


@dataclass
class LiveAccount:
    """
    What is told of a run before it is over.

    prints: whether a finding is printed at once. events: the file that gets a line of JSON for each
    finding. stops: whether the first one ends the run. trace: the file that a killed run leaves.
    """

    judge: LiveJudge
    err: TextIO = field(default_factory=lambda: sys.stderr)
    prints: bool = False
    stops: bool = False
    events: Path | None = None
    trace: Path | None = None
    _kept: float = -math.inf

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do before the run is over."""
        return self._tells or self.trace is not None

    @property
    def _tells(self) -> bool:
        """Whether anybody is told of a finding: a trace that is kept is not judged meanwhile."""
        return self.prints or self.stops or self.events is not None

    def wants_look(self) -> bool:
        """Say whether a look would tell anybody, or keep a newer trace."""
        return self._tells or perf_counter() - self._kept >= _APART

    def look(self, steps: int, trace: Trace[Any]) -> str:
        """Tell what is certain by now, and return why the run is to be stopped, or nothing."""
        if self.trace is not None and perf_counter() - self._kept >= _APART:
            self.trace = self.trace if write_file(self.trace, trace.to_text, self.err) else None
            self._kept = perf_counter()
        if not self._tells:
            return ""
        found = self.judge.judge(steps, trace)
        self.write_events(found, steps)
        for judged in found if self.prints else ():
            say(f"trainguard: certain at step {steps:,}\n{render_verdict(judged)}\n", self.err)
        return f"{found[0].invariant.name} is broken" if found and self.stops else ""

    def write_events(self, verdicts: list[Verdict], steps: int) -> None:
        """Append a line for each finding, so that others can be alerted."""
        if self.events is None or not verdicts:
            return
        head = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "steps": steps}
        lines = [json.dumps({**head, **line}) for line in finding_lines(verdicts)]
        try:
            with self.events.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as error:
            say(f"{self.events} could not be written: {error.strerror}.", self.err)
            self.events = None

    def write_rest(self, verdicts: tuple[Verdict, ...], steps: int) -> None:
        """Append what only the end of the run made certain."""
        told = [one.invariant for _, one in self.judge.told]
        rest = [one for one in verdicts if one.invariant not in told]
        self.write_events([one for one in rest if one.outcome != "excused"], steps)

    def as_rows(self) -> list[tuple[str, str]]:
        """Say in the report what ended the run."""
        if not (self.stops and self.judge.told):
            return []
        steps, judged = self.judge.told[0]
        return [("stopped", f"by --fail-fast at step {steps:,}: {judged.invariant.name} is broken")]
