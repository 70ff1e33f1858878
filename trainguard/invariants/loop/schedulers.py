"""Judgements of when a scheduler is advanced."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.loop import Scheduler, Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import Course, count, courses, events, last_word, mostly


@invariant("loop")
def scheduler_follows_optimizer(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A scheduler is advanced after its optimizer's step, not before.

    Judges: schedulers that were advanced before the first step of their optimizer and go on so:
        after backward and before the step in most steps, or, in a run that came to its end, once
        before the steps and never after the last of them.
    Allows: a first step that a gradient scaler skipped; advancing to where a run is resumed, or
        once past a rate of zero, and then after each step; ReduceLROnPlateau, which has no first
        rate; what the scheduler does while it is made.
    Misses: a scheduler that is advanced at the top of the loop in a run that was stopped early
        or thinned out.
    Why: the first rate of the schedule is skipped, and all others come a step, or an epoch, early.
    Source: the warning of torch.optim.lr_scheduler since PyTorch 1.1, which most logs hide.
    """
    by_name = {course.optimizer: course for course in courses(trace)}
    for scheduler in events(trace, Scheduler):
        course = by_name.get(scheduler.optimizer)
        if course is None or not _hurries(scheduler, course):
            continue
        finished = trace.conditions.get("ended") == "finished"
        if mostly(course.steps, _before_step) or (finished and _leads(scheduler, course)):
            step = course.every[0]
            yield Finding(
                f"a scheduler of `{trace.subject}` is advanced before its optimizer steps",
                f"{course.at(step)}, {scheduler.name}",
                f"{scheduler.early} of {scheduler.calls} calls before the first step",
                f"0 of {scheduler.calls}",
                why="scheduler.step() stands before optimizer.step(): the first rate is skipped",
                event=scheduler,
                source=scheduler.source or step.source,
            )


def _hurries(scheduler: Scheduler, course: Course) -> bool:
    """Say whether a scheduler was advanced before a first step that was made."""
    begin = course.every[0]
    return (
        scheduler.early > 0
        and scheduler.calls > 1
        and begin.step == 0
        and not begin.skipped
        and "schedule" in begin.order
        and not scheduler.name.startswith("ReduceLROnPlateau")
    )


def _before_step(step: Step) -> bool:
    """Say whether the scheduler was advanced between a step's last backward pass and the step."""
    return last_word(step, "schedule") > last_word(step, "backward") >= 0


def _leads(scheduler: Scheduler, course: Course) -> bool:
    """Say whether a scheduler is advanced once before steps, and not after the last of them."""
    windows = sum("schedule" in step.order for step in course.every)
    whole = count(course.every) == len(course.every)
    return whole and scheduler.early == 1 and scheduler.calls <= windows
