"""Judgements of how far a schedule is laid out, against how far the run drives it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.loop import Scheduler
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import HORIZONS, RATES
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    in_line,
    middle,
)
from trainguard.invariants.wording import number

_NEAR = 0.05  # of a number of steps: what drop_last, a remainder or an early end may take from it
_HALF = 0.5  # of a schedule: a run that ends before it has another length than its schedule
_AGAIN = 1.5  # times its length: past that a schedule is driven on purpose or by mistake
_LOW, _HIGH = 0.1, 0.5  # of the peak: where a decay is as good as over, and where it has restarted
_GONE = 0.01  # of the peak, at the end: what is cut now and then on purpose is cut to no less
_PART = 0.5  # of an epoch: what a remainder of its batches makes
_FEW = 20  # steps: in a shorter run numbers agree by chance
_GRADUAL = 4  # different rates on the way up: a restart on purpose is one leap
_BEGUN = 3  # times the advances of a run: a warmup that long is no plan for that run
_IN_STEPS = 50  # advances: the longest warmups in epochs that are published take 40
_SLIGHT = 10  # times the advances of a run: a decay of a tenth is as good as none
_MANY = 3  # micro-batches: a decay that ends at half of a run may be meant, for all that are two
_WHOLE = 1e-3  # of an advance: a climb that is made for a rate meets it exactly


@invariant("loop", evidence=HORIZONS)
def schedule_fits_the_run(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The length of a schedule matches the run, counted in the unit that advances it.

    Judges: schedulers that know their length (OneCycleLR, CosineAnnealingLR, PolynomialLR, a
        SequentialLR that ends with one, a LambdaLR whose function knows one number under a name
        such as `total_steps`) by how often they are advanced: less than half of it in a run that
        came to its end, where the length is the number of steps, of micro-batches or of samples of
        that run;
        beyond 1.5 times of it where the length is the number of epochs and each step advances it,
        or the number of steps and each micro-batch does, or where the rate of a LambdaLR climbs
        back from below 0.1 to above 0.5 of its peak, little by little. Milestones that all lie
        below the number of epochs, where each step advances it and the first epoch passes them; a
        step_size that is so small, where the rate ends below 0.01 of its peak.
        A rate that a formula lowers until so much of the run is over as a micro-batch is of a step,
        where there are 3 or more (a note of 2). And a note for a rate that a formula lowers along a
        line, of which it has made less than a tenth when the run ends.
    Allows: 5 % (limit) between those numbers; functions after whose number the rate still changes,
        and does not climb again as said; runs that are shorter than their schedule for another
        reason, as a trial, one that stops before its number of epochs, or one that goes on with
        another run; schedulers that restart by design, and those that are told the epoch. A note
        for a cosine that climbs again for no such reason.
    Misses: functions that know several lengths or none, and those that climb again from above that
        tenth; most milestones and warmups; epochs of data that no DataLoader serves.
    Why: a schedule in steps that is advanced by the epoch never leaves its warmup; the reverse is
        over in the first minutes, and a cosine then climbs back to its peak again and again.
    Source: pytorch/pytorch issue 65417; Lightning-AI/pytorch-lightning issue 1476;
        huggingface/accelerate issue 963; ivadomed/ivadomed issue 57.
    """
    by_name = {course.optimizer: course for course in courses(trace)}
    for scheduler in events(trace, Scheduler):
        course = by_name.get(scheduler.optimizer)
        if course is not None and scheduler.length > 1 and scheduler.calls:
            driven = _measure_drive(trace, scheduler, course)
            if scheduler.setting in ("milestones", "step_size"):
                yield from _early_milestones(trace, driven)
            else:
                yield from _too_long(trace, driven)
                yield from _too_short(trace, driven)
    scheduled = {scheduler.optimizer for scheduler in events(trace, Scheduler)}
    for course in by_name.values() if trace.conditions.get("ended") == "finished" else ():
        if course.optimizer not in scheduled:
            yield from _hardly_lowered(trace, course)
            yield from _over_in_micro_batches(trace, course)


@dataclass(frozen=True, slots=True)
class _Drive:
    """
    A scheduler, and what it was driven with.

    steps, passes, epochs: how many steps its optimizer made, how many backward passes those had,
        and how many times the loader was gone through, 0 where that is unknown.
    samples: how many the loader has served if each call is a batch, 0 where that is unknown.
    near: by how much two of those numbers may differ.
    """

    scheduler: Scheduler
    course: Course
    steps: int
    passes: int
    epochs: float
    samples: int
    near: float

    @property
    def calls(self) -> int:
        """How often it was advanced."""
        return self.scheduler.calls

    @property
    def length(self) -> int:
        """After how many advances it is over."""
        return self.scheduler.length

    @property
    def stopped_early(self) -> bool:
        """Whether the script has a number of epochs, and the run has made fewer."""
        planned = self.scheduler.planned if self.epochs else ()
        made = any(abs(number - self.epochs) <= _PART for number in planned)
        return not made and max(planned, default=0) > self.epochs

    def is_about(self, number: float, other: float) -> bool:
        """Say whether two numbers are the same, but for a remainder; small ones may be by luck."""
        return self.steps >= _FEW and abs(number - other) <= self.near * other


def _measure_drive(trace: Trace[Event], scheduler: Scheduler, course: Course) -> _Drive:
    """Count what a scheduler was driven with."""
    steps = count(course.every)
    each = [len(s.losses) for s in course.every if s.losses] or [1]
    passes = round(steps * middle(each))
    known = trace.conditions.get("batches")
    batches = known if isinstance(known, int) and known > 1 else 0
    epochs = passes / batches if batches else 0.0
    served, samples = trace.conditions.get("samples"), 0
    if isinstance(served, int) and epochs and scheduler.calls % batches == 0:
        samples = scheduler.calls // batches * served
    near = trace.limit("schedule_fits_the_run", _NEAR)
    return _Drive(scheduler, course, steps, passes, epochs, samples, near)


def _too_long(trace: Trace[Event], drive: _Drive) -> Iterator[Finding]:
    """Yield a finding for a schedule that has the length of the run, in a unit of its own."""
    finished = trace.conditions.get("ended") == "finished"
    if not finished or max(drive.calls, drive.scheduler.place) > _HALF * drive.length:
        return
    if drive.is_about(drive.length, drive.steps) and drive.calls <= _HALF * drive.steps:
        why = "the number of steps: call scheduler.step() after each optimizer.step()"
    elif drive.is_about(drive.length, drive.passes) and not drive.stopped_early:
        why = "the number of micro-batches: call scheduler.step() after each loss.backward(), "
        why += "or count the steps of the optimizer in its length"
    elif drive.length == drive.samples and drive.steps >= _FEW:
        why = "the number of samples, and each batch advances it: count the batches in its length"
    else:
        return
    summary = f"a schedule of `{trace.subject}` is hardly begun when the run ends"
    yield _make_finding(drive, summary, f"its length is {why}")


def _too_short(trace: Trace[Event], drive: _Drive) -> Iterator[Finding]:
    """Yield a finding for a schedule that was over long before the run."""
    if drive.calls < _AGAIN * drive.length:
        return
    climbs = _climbs_again(drive.course)
    if drive.scheduler.base and not climbs and not _is_over(drive):
        return  # its function multiplies that number by another, such as the batches of an epoch
    every_step = drive.calls >= (1 - drive.near) * drive.steps
    certain = True
    if drive.epochs > 1 and every_step and drive.is_about(drive.length, drive.epochs):
        why = "its length is the number of epochs, and it is advanced after each step"
    elif drive.passes > drive.steps and drive.is_about(drive.length, drive.steps):
        why = "its length is the number of steps, and it is advanced after each micro-batch"
    elif climbs:
        why = f"`{drive.scheduler.setting}` may be in another unit than the calls, as epochs"
        certain = bool(drive.scheduler.base)
    else:
        return
    yield _make_finding(
        drive,
        f"a schedule of `{trace.subject}` is over long before the run"
        + (", and its rate climbs again" if climbs else ""),
        why,
        Rank.BROKEN if certain else Rank.NOTE,
    )


def _is_over(drive: _Drive) -> bool:
    """Say whether the rate stays as it is, or is nothing, once a schedule has had its length."""
    advances = drive.calls / drive.steps
    after = {s.rates for s in drive.course.steps if (s.step - 1) * advances > drive.length}
    return len(after) <= 1 or all(max(rates, default=0.0) <= 0 for rates in after)


def _early_milestones(trace: Trace[Event], drive: _Drive) -> Iterator[Finding]:
    """Yield a finding for milestones that fit the epochs of a run, and pass within the first."""
    every_step = drive.calls >= (1 - drive.near) * drive.steps
    batches = drive.passes / drive.epochs if drive.epochs else 0.0
    within = 1 < drive.length <= min(drive.epochs, batches)
    if every_step and within and drive.steps >= _FEW:
        why = "they may be epochs, and it is advanced after each step"
        summary = f"all milestones of a schedule of `{trace.subject}` pass in the first epoch"
        if drive.scheduler.setting == "milestones":
            yield _make_finding(drive, summary, why)
        elif _is_gone(drive.course):
            summary = f"a schedule of `{trace.subject}` lowers the rate many times in each epoch"
            yield _make_finding(drive, summary, why.replace("they", "its steps"))


def _is_gone(course: Course) -> bool:
    """Say whether a rate ends far below its peak."""
    rates = [max(step.rates) for step in course.steps if step.rates]
    return bool(rates) and rates[-1] < _GONE * max(rates)


def _hardly_lowered(trace: Trace[Event], course: Course) -> Iterator[Finding]:
    """Yield a note for a rate that goes to zero along a line that is far longer than the run."""
    made, needed = _measure_line(course, 0.0)
    if made >= _FEW and needed >= _SLIGHT * made:
        last = course.every[-1]
        yield note(
            f"the rate of `{trace.subject}` has hardly been lowered when the run ends",
            course.at(last),
            integer(made, "advances") + f", to a rate of {number(last.rates[0])}",
            integer(needed, "advances") + ", to a rate of 0",
            why="its formula may divide one unit by another, as updates by samples",
            event=last,
            source=last.source,
        )


def _over_in_micro_batches(trace: Trace[Event], course: Course) -> Iterator[Finding]:
    """Yield a finding for a formula whose decay has as many steps as the run would have batches."""
    steps = [step for step in course.every if step.rates]
    batches = {len(step.losses) for step in steps}
    changed = [after for step, after in pairwise(steps) if after.rates != step.rates]
    if len(batches) != 1 or min(batches) < 2 or len(changed) < _FEW:
        return
    each, lowest = batches.pop(), min(step.rates[0] for step in steps)
    lasted = count([step for step in course.every if step.step < changed[-1].step])
    made = count(course.every)
    falls = changed[-1].rates[0] == lowest < max(step.rates[0] for step in steps)
    if falls and abs(lasted * each / made - 1) <= trace.limit("schedule_fits_the_run", _NEAR):
        yield Finding(
            f"the rate of `{trace.subject}` has come to its end long before the run",
            course.at(changed[-1]),
            integer(lasted, "steps") + f", of {made} with {each} micro-batches each",
            integer(made, "steps"),
            why="its formula may be given the number of micro-batches, and count on that of steps",
            rank=Rank.BROKEN if each >= _MANY else Rank.NOTE,
            event=changed[-1],
            source=changed[-1].source,
        )


def _climbs_again(course: Course) -> bool:
    """Say whether the rate falls to almost nothing and climbs back, not in one leap."""
    rates = [max(step.rates) for step in course.steps if step.rates]
    peak, fallen, rises = 0.0, False, 0
    for before, rate in pairwise(rates):
        peak = max(peak, before)
        fallen = fallen or rate <= _LOW * peak
        rises = rises + 1 if rate > before else 0 if rate < before else rises
        if fallen and rises >= _GRADUAL and rate >= _HIGH * peak:
            return True
    return False


def _make_finding(drive: _Drive, summary: str, why: str, rank: Rank = Rank.BROKEN) -> Finding:
    """Return the finding about a schedule of another length than the run."""
    scheduler = drive.scheduler
    return Finding(
        summary,
        scheduler.name,
        integer(drive.calls, "calls") + f" in {drive.steps} steps",
        integer(drive.length, "calls") + f" ({scheduler.setting})",
        why=why + in_line(scheduler.advanced),
        rank=rank,
        event=scheduler,
    )


@invariant("loop", evidence=RATES)
def warmup_ends(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A warmup ends within the run that it is made for.

    Judges: rates that climb through the whole of a run that came to its end, in equal advances to
        the rate that the optimizer was made with: how many of them that takes, where it is 3 times
        (limit) or more of those that were made, and no more than the steps of the run. Broken where
        it is 50 or more, and a scheduler makes them. And sequences that leave a LinearLR before it
        has come half of its way, and half as high.
    Allows: less than 4 advances, as in a trial of a few epochs; climbs that do not meet that rate
        exactly, or would not in any unit. A note where a formula sets the rate, or the warmup may
        be in epochs and the run a trial.
    Misses: warmups that do not climb along a line; those over a rate that is not the optimizer's.
    Why: a warmup that counts steps and is advanced once for each epoch keeps the rate at a few
        percent of what was meant; the loss falls all the same, only slower.
    Source: huggingface/transformers, whose get_linear_schedule_with_warmup counts steps; the
        documentation of torch.optim.lr_scheduler, whose examples advance it by the epoch.
    """
    yield from _cut_short(trace)
    own = [probe for probe in events(trace, Probe) if probe.probe == "base rate"]
    bases = {probe.label: probe.reference for probe in own}
    for course in courses(trace) if trace.conditions.get("ended") == "finished" else ():
        made, needed = _measure_line(course, bases.get(course.optimizer, 0.0))
        steps = count(course.every)
        least = trace.limit("warmup_ends", _BEGUN)
        if steps < _FEW or made < _GRADUAL or not least * made <= needed <= steps:
            continue
        planned = [s for s in events(trace, Scheduler) if s.optimizer == course.optimizer]
        if any(_HALF * scheduler.length > scheduler.calls for scheduler in planned):
            continue  # judged by its length
        last, source = course.every[-1], planned[0].source if planned else ""
        yield Finding(
            f"the warmup of `{trace.subject}` has hardly begun when the run ends",
            course.at(last),
            integer(made, "advances") + f" in {steps} steps, to a rate of {number(last.rates[0])}",
            integer(needed, "advances") + f", to the {number(bases[course.optimizer])} it is for",
            why="it may count steps, and be advanced once for each epoch",
            rank=Rank.BROKEN if planned and needed >= _IN_STEPS else Rank.NOTE,
            event=last,
            source=source or last.source,
        )


def _cut_short(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for each sequence that leaves its warmup long before that has ended."""
    for probe in events(trace, Probe):
        if probe.probe == "cut warmup":
            yield Finding(
                f"the warmup of `{trace.subject}` is cut short, and its rate leaps",
                probe.label,
                integer(probe.measured, "advances") + " of it are made",
                integer(probe.reference, "advances") + " (total_iters)",
                why="the milestone behind it and its total_iters may be in two units, as epochs"
                " and steps",
                event=probe,
            )


def _measure_line(course: Course, goal: float) -> tuple[int, int]:
    """
    Return how many equal advances a rate has made, and how many lead to another rate.

    Nothing where it goes up and down, or the advances are not equal or never meet that rate.
    """
    rates = [step.rates[0] for step in course.steps if step.rates]
    gaps = [after - rate for rate, after in pairwise(rates) if after != rate]
    least = min(gaps, key=abs, default=0.0)
    if not least:
        return 0, 0
    needed = [gap / least for gap in (*gaps, goal - rates[0])]
    if not all(isfinite(part) and abs(part - round(part)) <= _WHOLE for part in needed):
        return 0, 0
    if min(needed) < 0:
        return 0, 0
    return round(sum(needed[:-1])), round(needed[-1])
