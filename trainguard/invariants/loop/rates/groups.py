"""Judgements of what the groups of an optimizer are made with."""

from collections.abc import Iterator
from math import isclose

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.loop import Scheduler
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import Course, count, courses, events
from trainguard.invariants.wording import number

_FEWEST = 20  # steps, of which none is made with the rates that the groups were made with
_MOVES = 10  # rates of the first group: a formula, and no choice that is made once or twice
_ROUNDING = 1e-6
_STEPS = 8  # with a rate that was loaded
_FAR = 10.0  # times: a schedule that has run its course
_CONVERGES = 1.0  # beta1 ** 2 / beta2 ** 0.5, from Theorem 4.1 of the paper on Adam


@invariant("loop", evidence=has_probe("group rates", "no optimizer had several groups"))
def groups_keep_their_rates(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Parameter groups keep their own learning rates, and groups with equal rates change alike.

    Judges: optimizers of several groups that make 20 steps or more: whether rates that differed
        when it was made are equal in all steps; and, where they were equal and no scheduler drives
        it, whether that of the first or the last group takes 10 values or more while no other one
        ever moves: broken where a line of the file sets `param_groups[0]["lr"]`, else a note.
    Allows: rounding, 1e-6 of a rate (limit); any schedule that keeps the rates apart; groups that
        come together later on; rates of zero; groups that are added later; formulas where groups
        have keys of their own ("fixed": True), by which they may be told apart.
    Misses: rates that are set apart after the optimizer was made; a group among several that
        differ.
    Why: OneCycleLR with one max_lr, or a formula that sets all groups, gives the pretrained layers
        the rate of the new head; and one that sets the first group leaves the others at a constant
        rate.
    Source: the documentation of torch.optim.lr_scheduler.OneCycleLR (max_lr: "float or list"); that
        of torch.optim on per-parameter options; rasbt/LLMs-from-scratch issue 692 (a rate that is
        set after the loop over groups).
    """
    made = {p.label: p for p in events(trace, Probe) if p.probe == "group rates"}
    planned = {scheduler.optimizer for scheduler in events(trace, Scheduler)}
    rounding = trace.limit("groups_keep_their_rates", _ROUNDING)
    for course in courses(trace):
        probe = made.get(course.optimizer)
        rated = [step for step in course.steps if len(step.rates) > 1 and min(step.rates) > 0]
        if probe is None or count(rated) < _FEWEST or probe.reference <= 0:
            continue
        if not isclose(probe.measured, probe.reference, rel_tol=rounding):
            if all(isclose(max(s.rates), min(s.rates), rel_tol=rounding) for s in rated):
                yield _made_equal(trace, course, probe)
        elif course.optimizer not in planned and probe.step >= 0:
            yield from _left_behind(trace, course, probe)


def _made_equal(trace: Trace[Event], course: Course, probe: Probe) -> Finding:
    """Return the finding of groups whose rates differ only when the optimizer is made."""
    return Finding(
        f"parameter groups of `{trace.subject}` lose their different learning rates",
        f"{course.optimizer}, {len(course.steps[0].rates)} groups",
        number(course.steps[0].rates[0])
        + f" in each at the first step, equal in all {count(course.steps)} steps",
        number(probe.measured) + f" down to {probe.reference:g}, as they are made",
        why="a schedule with one rate for all groups takes the place of their own: give it one for"
        ' each, or multiply what each began with (group["initial_lr"])',
        event=probe,
        source=probe.source,
    )


def _left_behind(trace: Trace[Event], course: Course, probe: Probe) -> Iterator[Finding]:
    """Yield a finding where a formula moves the rate of the first or the last group alone."""
    values = [{step.rates[place] for step in course.steps} for place in range(_groups(course))]
    moving = [place for place, rates in enumerate(values) if len(rates) >= _MOVES]
    others = {rate for place, rates in enumerate(values) if place not in moving for rate in rates}
    if moving not in ([0], [len(values) - 1]) or others != {probe.measured}:
        return
    which = "last" if moving[0] else "first"
    certain = probe.step == 1 and not moving[0]
    yield Finding(
        f"a formula of `{trace.subject}` sets the rate of the {which} group alone",
        f"{course.optimizer}, {len(values)} groups",
        number(probe.measured)
        + f" in the other groups in all {count(course.steps)} steps, while the {which} one's has"
        f" {len(values[moving[0]])} values",
        "one schedule for all groups, which are made with one rate",
        why="set the rate of each, in the loop: for group in optimizer.param_groups",
        rank=Rank.BROKEN if certain else Rank.NOTE,
        event=probe,
        source=probe.source,
    )


def _groups(course: Course) -> int:
    """Return how many groups have a rate in all steps."""
    return min((len(step.rates) for step in course.steps), default=0)


@invariant("loop", evidence=has_probe("betas", "no optimizer of torch that adapts made steps"))
def averages_of_squares_last_longer(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Adam's betas are in order: squared gradients are averaged over more steps than gradients.

    Judges: the betas of Adam, AdamW, NAdam and RAdam of torch: beta1 ** 2 / beta2 ** 0.5, which
        must be below 1 (limit) for Adam to converge.
    Allows: equal ones, as (0.9, 0.9), and all usual ones, as (0.5, 0.999) and (0.0, 0.9).
    Misses: averages that are too long or too short for the run; optimizers that are not torch's.
    Why: with betas in the wrong order a step goes along gradients of a thousand steps before,
        divided by the size of the last ten: it is far too long where gradients have become small.
    Source: Kingma and Ba, 2015, Theorem 4.1 (arxiv.org/abs/1412.6980).
    """
    most = trace.limit("averages_of_squares_last_longer", _CONVERGES)
    for probe in events(trace, Probe):
        if probe.probe == "betas" and probe.measured**2 >= most * probe.reference**0.5:
            yield Finding(
                f"an optimizer of `{trace.subject}` averages squares over fewer steps than"
                " gradients",
                probe.label,
                f"betas ({probe.measured:g}, {probe.reference:g}), beta1**2 / beta2**0.5 = "
                + number(probe.measured**2 / max(probe.reference, 1e-12) ** 0.5),
                "below " + integer(most) if most == 1 else "below " + number(most),
                why="perhaps the two are exchanged: the first is that of the gradients",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("unread setting", "no optimizer of torch made a step"))
def rates_are_set_where_they_are_read(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A learning rate is set where the optimizer reads it, in its parameter groups.

    Judges: optimizers of torch that step: attributes `lr` and `learning_rate`, a default that
        changed after the optimizer was made, and groups with a key "learning_rate", each beside
        another rate in force.
    Allows: rates that are in force as well; optimizers of other libraries and of one's own, which
        may read what they like; groups whose rate is another than they were made with.
    Misses: keys with other names; settings beside the rate.
    Why: Python takes any attribute and torch any key of a group: nothing complains, and the rate
        stays what it was.
    Source: the documentation of torch.optim, per-parameter options: groups have the keys that the
        optimizer accepts as arguments.
    """
    for probe in events(trace, Probe):
        if probe.probe == "unread setting":
            yield Finding(
                f"a rate of `{trace.subject}` is set where nothing reads it",
                f"`{probe.label}`",
                number(probe.measured),
                Measure(f"{probe.reference:g}, the rate in force", probe.reference),
                why='a rate is set in each group: `for group in optimizer.param_groups: group["lr"]'
                " = rate`, or by a scheduler",
                event=probe,
            )


@invariant("loop", evidence=has_probe("loaded rate", "no state was loaded into an optimizer"))
def given_rates_outlast_loading(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Loading an optimizer's state does not replace the learning rate chosen for this run.

    Judges: optimizers that are made with one rate and loaded with a state of another, before their
        first step, where no scheduler drives them: whether they make 8 steps or more, and no other,
        with a rate that is ten times (limit) smaller or larger than the one that they were made
        with. The state has to tell that a schedule of its own began with yet another rate.
        Rates that statements set just before they load a state, with another rate in it: whether
        8 steps or more are made with that one, and none with any other.
    Allows: runs that go on, whose optimizers are made with the rate that the schedule began with;
        rates that are set after the load; schedulers, whatever they do.
    Misses: states of trainings without a schedule; other settings, such as weight decay.
    Why: load_state_dict brings the groups with all their settings: what a first training has ended
        with, 1e-6 perhaps, is the rate of the second one, and the argument counts for nothing.
    Source: facebookresearch/ParlAI issue 3116; pytorch/examples issue 816.
    """
    yield from _lost_rates(trace)
    factor = trace.limit("given_rates_outlast_loading", _FAR)
    for probe in events(trace, Probe):
        if probe.probe != "loaded rate" or not probe.label or probe.step < _STEPS:
            continue
        small, large = sorted((probe.measured, probe.reference))
        if large >= factor * small:
            yield Finding(
                f"an optimizer of `{trace.subject}` uses the learning rate of an earlier training",
                integer(probe.step, "steps") + f", no scheduler; that one began with {probe.label}",
                number(probe.measured) + ", as its state was loaded",
                Measure(f"{probe.reference:g}, which it was made with", probe.reference),
                why="set it after optimizer.load_state_dict(...): `for group in"
                ' optimizer.param_groups: group["lr"] = rate`',
                event=probe,
            )


def _lost_rates(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the first rate that was set, and lost to a state that was loaded after it."""
    for probe in events(trace, Probe):
        if probe.probe == "lost rate" and probe.step >= _STEPS:
            yield Finding(
                f"a rate that `{trace.subject}` sets is lost to the state that it loads after it",
                integer(probe.step, "steps") + " after that, no scheduler",
                number(probe.measured) + ", as its state was loaded",
                Measure(f"{probe.reference:g}, which was set before", probe.reference),
                why="set the rate after optimizer.load_state_dict(...), which brings the groups of"
                " parameters with all their settings",
                event=probe,
            )
            return
