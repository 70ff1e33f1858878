"""The judge of when a scheduler is advanced."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Scheduler, Step
from trainguard.events.probe import Probe

STOPPED = {"ended": "stopped"}


def line(early: int = 1, calls: int = 20, **more) -> Scheduler:
    """Write the scheduler of the only optimizer."""
    row = {"name": "LambdaLR", "optimizer": "SGD", "source": "/home/me/train.py:20", **more}
    return Scheduler(early=early, calls=calls, **row)


def windows(steps, first: str, others: str, count: int = 20, **more) -> list[Step]:
    """Write steps with one order in the first window and another in the later ones."""
    return steps(count, order=lambda i: tuple((others if i else first).split()), **more)


LATE = ("zero forward backward schedule", "zero forward backward schedule")
EARLY = ("schedule zero forward backward", "schedule zero forward backward")
EPOCH = ("schedule zero forward backward", "zero forward backward")


@pytest.mark.parametrize("conditions", [{}, STOPPED], ids=["finished", "stopped"])
def test_a_scheduler_before_its_optimizer_is_found(conditions, judged, steps) -> None:
    """Between backward and step it is found however the run ended."""
    (finding,) = judged("scheduler_follows_optimizer", [*windows(steps, *LATE), line()], conditions)
    assert finding.summary == "a scheduler of `train` is advanced before its optimizer steps"
    assert (finding.at, finding.source) == ("step 0, LambdaLR", "/home/me/train.py:20")
    assert finding.measured == "1 of 20 calls before the first step"
    assert (finding.allowed, finding.rank) == ("0 of 20", Rank.BROKEN)


def test_a_scheduler_that_is_advanced_twice_is_told_so(judged, steps) -> None:
    """Before the step and after it: their order is the smaller part of the fault."""
    (finding,) = judged("scheduler_follows_optimizer", [*windows(steps, *LATE), line(calls=40)])
    assert finding.summary.endswith("is advanced more often than its optimizer steps")
    assert (finding.measured, finding.allowed) == ("40 calls in 20 steps", "20 calls")


def test_a_scheduler_at_the_top_of_the_loop_is_found(ranks, steps) -> None:
    """As many calls as windows: none of them came after the last step."""
    run = windows(steps, *EARLY)
    assert ranks("scheduler_follows_optimizer", [*run, line()]) == ["broken"]
    assert ranks("scheduler_follows_optimizer", [*run, line()], STOPPED) == []
    assert ranks("scheduler_follows_optimizer", [*run, line(calls=21)]) == []


def test_a_scheduler_at_the_top_of_each_epoch_is_found(ranks, steps) -> None:
    """The style of before PyTorch 1.1; with a call after the last epoch it is another one."""
    run = steps(20, order=lambda i: (EPOCH[1] if i % 5 else EPOCH[0]).split())
    assert ranks("scheduler_follows_optimizer", [*run, line(calls=4)]) == ["broken"]
    assert ranks("scheduler_follows_optimizer", [*run, line(calls=5)]) == []


@pytest.mark.parametrize(
    ("more", "scheduler"),
    [
        ({}, line(early=0)),
        ({}, line(calls=1)),
        ({"skipped": lambda i: i == 0}, line()),
        ({"step": lambda i: 100 + i}, line()),
        ({}, line(name="ReduceLROnPlateau")),
        ({}, line(optimizer="Adam")),
        ({}, line(optimizer="")),
    ],
    ids=["after", "once", "skipped", "recorded later", "plateau", "no steps", "no optimizer"],
)
def test_calls_that_skip_no_rate(more: dict, scheduler: Scheduler, ranks, steps) -> None:
    """What a scaler caused, or what has no first rate, is left alone."""
    run = windows(steps, *LATE, **more)
    assert ranks("scheduler_follows_optimizer", [*run, scheduler]) == []


@pytest.mark.parametrize(("early", "calls"), [(500, 520), (1, 21), (20, 20)])
def test_a_resumed_schedule_is_wound_forward(early: int, calls: int, ranks, steps) -> None:
    """Calls before the first step only, and one after each step, skip what was already trained."""
    run = windows(steps, *EARLY)
    assert ranks("scheduler_follows_optimizer", [*run, line(early=early, calls=calls)]) == []


@pytest.mark.parametrize(
    ("first", "others"),
    [("zero forward backward", LATE[1]), ("schedule", "schedule")],
    ids=["not in the first", "no backward"],
)
def test_a_habit_that_is_not_seen(first: str, others: str, ranks, steps) -> None:
    """A first window without the scheduler, or without backward, shows no order."""
    run = [*windows(steps, first, others), line()]
    assert ranks("scheduler_follows_optimizer", run, STOPPED) == []


def test_the_step_is_named_where_the_scheduler_has_no_line(judged, steps) -> None:
    """A scheduler that a library made has no line of the user's code."""
    (finding,) = judged("scheduler_follows_optimizer", [*windows(steps, *LATE), line(source="")])
    assert finding.source == "/home/me/train.py:12"


def test_a_thinned_run_is_judged_by_its_windows(ranks, steps) -> None:
    """Where steps are left out, calls and windows cannot be compared; the order can."""
    late = [*windows(steps, *LATE, span=10), line(calls=200)]
    early = [*windows(steps, *EARLY, span=10), line()]
    assert ranks("scheduler_follows_optimizer", late) == ["broken"]
    assert ranks("scheduler_follows_optimizer", early) == []


def test_a_single_step_is_no_habit(ranks, steps) -> None:
    """One call before one step skips nothing that comes later."""
    assert ranks("scheduler_follows_optimizer", [*windows(steps, *LATE, 1), line(calls=1)]) == []


@pytest.mark.parametrize(
    ("parts", "told", "ranks_of"), [(4, 4, ["broken"]), (2, 4, []), (2, 2, [])]
)
def test_a_scheduler_that_is_told_a_loss(parts: float, told: int, ranks_of, ranks) -> None:
    """Most of three values or more are no whole numbers."""
    probe = Probe(
        probe="told epochs", measured=parts, reference=1.0, step=told, label="StepLR loss"
    )
    assert ranks("schedulers_are_told_epochs", [probe]) == ranks_of


@pytest.mark.parametrize(("late", "expected"), [(1, []), (2, ["broken"]), (7, ["broken"])])
def test_a_scheduler_of_an_optimizer_that_steps_no_more(late, expected, judged, steps) -> None:
    """Two advances or more; one may be that of the last step."""
    probe = Probe(
        probe="former optimizer",
        measured=late,
        reference=9.0,
        label="StepLR of SGD",
        source="/home/me/train.py:30",
    )
    findings = judged("schedulers_go_on_with_what_steps", [*steps(20), probe])
    assert [finding.rank.value for finding in findings] == expected
    for finding in findings:
        assert finding.at == "StepLR of SGD"
        assert finding.measured.startswith(f"{late} advances of 9 since")
        assert finding.source == "/home/me/train.py:30"
