"""Judge a run that still goes on, by what needs no end of it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.judging.judge import Finished, Observations, applicable, verdict
from trainguard.judging.verdict import Config, Verdict
from trainguard.subjects.loop import Run


class LiveJudge:
    """
    Tells each invariant that is broken once, at the first look at which it is.

    It judges as it would judge a run that was stopped there. What was told is told at the end too:
    a fault of the first thousand steps stays one, whatever the steps after them do.

    told: what was told by now, with the steps made until then. hold: what a verdict goes through,
        such as a baseline.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        rerun: str = "",
        silence: str = "",
        hold: Callable[[Verdict], Verdict] = lambda judged: judged,
    ) -> None:
        self.told: list[tuple[int, Verdict]] = []
        self._hold = hold
        self._run, self._settings, self._words = run, settings, (rerun, silence)
        every = [made for made, _ in applicable(run, settings, ())]
        self._waiting = [made for made in every if made.live and made.probe == "run"]

    def judge(self, steps: int, trace: Trace[Any]) -> list[Verdict]:
        """Return what is broken by now and was not told yet; notes wait for the end."""
        observations = Observations(self._settings)
        observations.keep(self._run, Config(), Finished(trace))
        chosen = [made for made in self._waiting if made.live <= steps]
        judged = [verdict(self._run, m, Config(), observations, *self._words) for m in chosen]
        broken = [one for one in map(self._hold, judged) if one.outcome == "broken"]
        self.told += [(steps, one) for one in broken]
        self._waiting = [m for m in self._waiting if m not in [one.invariant for one in broken]]
        return broken

    def merge(self, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
        """Return the verdicts on the whole run, and what was told of its beginning alone."""
        told = {one.invariant.name: one for _, one in self.told}
        return tuple(_join(one, told.get(one.invariant.name)) for one in verdicts)


def _join(whole: Verdict, told: Verdict | None) -> Verdict:
    """Return the verdict on a whole run, or what was told of its beginning where that is worse."""
    if told is None or whole.outcome in ("broken", "excused"):
        return whole
    if whole.outcome == "stale":  # the excuse is for what was told
        return replace(told, outcome="excused", reason=whole.reason)
    return replace(told, crash=whole.crash)
