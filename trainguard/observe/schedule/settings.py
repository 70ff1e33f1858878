"""Draw the settings of a declared schedule with Hypothesis, and find the smallest that fails."""

from collections.abc import Callable
from contextlib import suppress

import hypothesis
from hypothesis import strategies as st

from trainguard.core.errors import SubjectError
from trainguard.observe.schedule.drive import Setting
from trainguard.observe.tools.structure import DRAWING, SHRINKING, explore
from trainguard.subjects.schedule import Schedule


class _FailingSetting(Exception):
    """Tells Hypothesis that a setting fails, so that it looks for a smaller one."""


def draw(schedule: Schedule, count: int, seed: int) -> list[Setting]:
    """Draw up to `count` different settings, the smallest first; one empty one without `vary`."""
    drawn: list[Setting] = []

    def collect(setting: Setting) -> None:
        """Keep a setting that is new."""
        if setting not in drawn:
            drawn.append(setting)

    if not schedule.vary:
        return [{}]
    with suppress(hypothesis.errors.Unsatisfiable):
        _explore(schedule, collect, count, seed)
    if not drawn:
        raise SubjectError(
            "no setting drawn from vary= keeps warmup below total and floor below peak",
            "widen the ranges, or change the promises",
        )
    return drawn


def smallest(
    schedule: Schedule, fails: Callable[[Setting], bool], known: Setting, count: int, seed: int
) -> Setting:
    """
    Return the smallest setting that fails; the known one where no other is found.

    The draws are those of `draw`, so that the setting that failed there is met again.
    """
    failing = [known]

    def judge(setting: Setting) -> None:
        """Report a setting that fails to Hypothesis, which ends with the smallest one."""
        if fails(setting):
            failing.append(setting)
            raise _FailingSetting

    with suppress(_FailingSetting, hypothesis.errors.Flaky):
        _explore(schedule, judge, count, seed, SHRINKING)
    return failing[-1]


def _explore(
    schedule: Schedule,
    test: Callable[[Setting], None],
    count: int,
    seed: int,
    phases: tuple[hypothesis.Phase, ...] = DRAWING,
) -> None:
    """Run a test on settings of the declaration that can be meant."""

    def each(setting: Setting) -> None:
        """Run the test where the setting can be meant."""
        hypothesis.assume(_can_be_meant(schedule, setting))
        test(setting)

    explore(st.fixed_dictionaries(dict(schedule.vary)), each, count, seed, phases)


def _can_be_meant(schedule: Schedule, setting: Setting) -> bool:
    """Say whether a draw keeps the order of the promises: warmup below total, floor below peak."""
    for lower, upper in (("warmup", "total"), ("floor", "peak")):
        least = setting.get(lower, getattr(schedule, lower))
        most = setting.get(upper, getattr(schedule, upper))
        if least is not None and most is not None and least > most:
            return False
    return True
