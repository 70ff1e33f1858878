"""Judgements of modes: training while it trains, evaluation while it is evaluated, and no trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Logged, Parameter, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.accuracy_bases import (
    Closeness,
    bases_of,
    means_accuracy,
    score_places,
)
from trainguard.invariants.loop.evidence import (
    BATCHES,
    MEASURED,
    SWEPT,
    several_optimizers,
)
from trainguard.invariants.loop.models.results import find_awake
from trainguard.invariants.loop.wording import (
    Course,
    and_more,
    count,
    courses,
    events,
    in_line,
    lines_of_origin,
    root_of,
    tally,
)

_FEW = 2
_LOOKS = 4
_SWEEPS = 3  # between steps; batch statistics are gathered on purpose once, or at the end
_NEAR = 2e-3  # of an accuracy that is said: what averaging in float16 may change
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@invariant("loop", evidence=BATCHES)
def training_mode_is_on(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A model is in training mode while it is trained.

    Judges: steps whose outermost module was in evaluation mode, with dropout or batch statistics
        asleep in it: 2 or more in a row after an evaluation, to the end of the run or more than
        once, where it was in training mode before; all steps of the run: a note, unless it has
        batch statistics that are what they were made with in all of 4 looks or more.
    Allows: single modules that are put to sleep in a model that is in training mode; models that
        do not move; batch statistics whose weights are frozen; modes that come in turns, as often
        without an evaluation between them as with one. A last phase that begins without an
        evaluation is a note.
    Misses: dropout that is called as a function.
    Why: an evaluation that does not switch back leaves the rest of the run without dropout, and
        with batch statistics that never change again.
    Source: fartashf/vsepp issue 4; facebookresearch/clevr-iep pull request 22.
    """
    moved = _moved_models(trace)
    for course in courses(trace):
        rows = [tuple(own) for _, own in groupby(course.steps, key=_sleeps)]
        own = [row for row in rows if _sleeps(row[0]) and _learns(row[0].asleep, moved)]
        if own and len(rows) == 1 and count(rows[0]) >= _FEW:
            yield _explain_never_awake(trace, course)
            continue
        pairs = [
            _Switch(before[-1], row)
            for before, row in pairwise(rows)
            if row in own and count(row) >= _FEW and any(map(_is_awake, before))
        ]
        left = [switch for switch in pairs if switch.evaluation(trace) is not None]
        lasts = bool(pairs) and pairs[-1].row is rows[-1]
        if _come_in_turns(trace, rows, left):
            continue
        if left and (len(left) > 1 or left[-1].row is rows[-1]):
            yield _left_asleep(trace, course, left)
        elif lasts and len(own) == 1:
            yield _left_asleep(trace, course, pairs)


def _sleeps(step: Step) -> bool:
    """Say whether a step was made in evaluation mode, and that matters."""
    return bool(step.asleep) and not step.training


def _is_awake(step: Step) -> bool:
    """Say whether a step was made in training mode, with nothing asleep."""
    return step.training and not step.asleep


@dataclass(frozen=True, slots=True)
class _Switch:
    """The last step before a model fell asleep, and the steps in a row after."""

    last: Step
    row: tuple[Step, ...]

    def evaluation(self, trace: Trace[Event]) -> Evaluation | None:
        """Return the evaluation of the same model, in evaluation mode, that lies between."""
        between = [
            e
            for e in events(trace, Evaluation)
            if self.last.clock < e.clock < self.row[0].clock
            and not e.training
            and root_of(e.module) == root_of(self.row[0].asleep[0])
        ]
        return between[-1] if between else None


def _come_in_turns(
    trace: Trace[Event], rows: Sequence[tuple[Step, ...]], left: Sequence[_Switch]
) -> bool:
    """Say whether a model falls asleep as often with no evaluation before it as with one."""
    # One step that stands for several, in a long run, does not say that those were alike.
    if not any(len(switch.row) >= _FEW for switch in left):
        return bool(left)
    pairs = [_Switch(before[-1], row) for before, row in pairwise(rows) if _sleeps(row[0])]
    alone = [pair for pair in pairs if pair.evaluation(trace) is None]
    return len(pairs) > _FEW and len(alone) >= len(left)


def _explain_never_awake(trace: Trace[Event], course: Course) -> Finding:
    """Return the finding about a model that is in evaluation mode throughout."""
    step = course.steps[0]
    virgin = any(
        probe.measured == probe.reference >= _LOOKS
        for probe in events(trace, Probe)
        if probe.probe == "virgin statistics" and root_of(probe.label) == root_of(step.asleep[0])
    )
    return Finding(
        f"`{trace.subject}` trains a model in evaluation mode",
        course.at(step) + f", {and_more(step.asleep)}",
        "asleep in " + tally(course.steps, course.steps),
        "awake",
        why="no batch has ever moved its batch statistics, so that they normalise nothing:"
        " model.train() is missing before the steps, as after an evaluation that comes first"
        if virgin
        else "pretrained models are often loaded in evaluation mode; model.train() is missing",
        rank=Rank.BROKEN if virgin else Rank.NOTE,
        event=step,
    )


def _left_asleep(trace: Trace[Event], course: Course, left: Sequence[_Switch]) -> Finding:
    """Return the finding about a model that was not put back into training mode."""
    step, before = left[0].row[0], left[0].evaluation(trace)
    by = f", after the evaluation of {before.module}" if before else ""
    asleep = [step for switch in left for step in switch.row]
    return Finding(
        f"`{trace.subject}` goes on training in evaluation mode",
        course.at(step) + f"{by}, {and_more(step.asleep)}",
        "asleep in " + tally(asleep, course.steps),
        "awake, as before",
        why="model.train() is missing after the evaluation"
        + in_line(*lines_of_origin(trace, "evaluation mode"))
        if before
        else "",
        rank=Rank.BROKEN if before else Rank.NOTE,
        event=step,
        source=before.source if before else step.source,
    )


def _moved_models(trace: Trace[Event]) -> set[str] | None:
    """Return the outermost modules that the run has moved; None where nothing is known."""
    parameters = events(trace, Parameter)
    return {root_of(p.name) for p in parameters if p.moved and not p.copy} if parameters else None


def _learns(asleep: Sequence[str], moved: set[str] | None) -> bool:
    """Say whether sleeping modules belong to a model that learns, as far as that is known."""
    return moved is None or any(root_of(name) in moved for name in asleep)


@invariant("loop", evidence=SWEPT, live=SOON)
def evaluation_mode_is_on(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Evaluations are run with the model in evaluation mode.

    Judges: evaluations with a loss, after the first step, in which the outermost module is in
        training mode with dropout or batch statistics awake in it: more than half of them. Without
        a loss: several passes in a row without a graph that move batch statistics, before 3 steps
        or more, where the module is never called in evaluation mode; with several optimizers, of
        which one may train what is sampled from, that is a note. And passes without a graph around
        3 steps: whether two over one input differ on a copy, and not once nothing is dropped, where
        no module is called in evaluation mode in the whole run, and a number of one is said.
    Allows: passes of every window (a rollout, a teacher), if nothing is said of them; batch
        statistics that are gathered before evaluations, or with no momentum, as torch's update_bn
        does; Monte Carlo dropout: modules that are kept awake in a model in evaluation mode, or
        evaluations most of whose passes have the input of the one before;
        a single pass with a graph, which may be a batch that was skipped; three passes over one
        input, as for an average.
    Misses: dropout beside passes in evaluation mode, where no loss is one of torch's functions and
        no accuracy is said; dropout as a function on accelerators.
    Why: dropout makes the validation loss too high and noisy, and batch statistics take in the
        validation set.
    Source: pliang279/MultiBench issue 26; icon-lab/SynDiff issue 46.
    """
    judged = [
        e
        for e in _measuring(trace)
        if e.step > 0
        and not (e.training and e.gradients and e.passes < _FEW)
        and 2 * e.repeats <= e.passes
    ]
    awake = [e for e in judged if e.training and e.awake]
    if 2 * len(awake) > len(judged):
        yield Finding(
            f"`{trace.subject}` measures a loss in training mode",
            at_step(awake[0].step) + f", {and_more(awake[0].awake)}",
            "awake in " + portion(len(awake), len(judged), "evaluations"),
            "asleep",
            why="model.eval() is missing before the evaluation",
            event=awake[0],
        )
    else:
        yield from list(_find_sweeps(trace)) or find_awake(trace)


def _find_sweeps(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding where passes without a loss go on moving batch statistics in the training."""
    every = events(trace, Evaluation)
    asleep = {e.module for e in every if not e.training}
    said = [e for e in every if e.module not in asleep and _says_accuracy(trace, e)]
    if len({e.step for e in said}) >= _SWEEPS:
        yield Finding(
            f"`{trace.subject}` measures an accuracy in training mode",
            at_step(said[0].step) + f", {and_more(said[0].awake)}",
            "awake in " + integer(len(said), "evaluations"),
            "asleep",
            why="model.eval() is missing before the evaluation",
            event=said[0],
        )
        return
    last = sum(step.span for step in events(trace, Step) if not step.skipped)
    sweeps = [e for e in every if _moves_statistics(e) and 0 < e.step < last]
    sweeps = [e for e in sweeps if e.module not in asleep]
    if len({e.step for e in sweeps}) >= _SWEEPS:
        first, several = sweeps[0], not several_optimizers(trace)
        yield Finding(
            f"`{trace.subject}` evaluates in training mode",
            at_step(first.step) + f", {and_more(first.awake)}",
            f"batch statistics of {first.passes} batches taken in, without a graph, as in "
            + integer(len(sweeps), "sweeps"),
            "none: those of the training alone",
            why="model.eval() is missing before the evaluation: what is said of a sample depends on"
            " its batch",
            rank=Rank.NOTE if several else Rank.BROKEN,
            event=first,
        )


def _says_accuracy(trace: Trace[Event], passes: Evaluation) -> bool:
    """Say whether the hits of passes with something awake are the accuracy that is said of them."""
    if not passes.awake or passes.gradients or passes.routine or not passes.step > 0:
        return False
    places = [own for own in score_places(trace) if own.scores[0].source == f"of {passes.module}"]
    return any(
        said.step == passes.step
        and means_accuracy(said.name)
        and basis.part == "evaluation"
        and Closeness(_NEAR)(said, basis.counts["right"].share)
        for said in events(trace, Logged)
        for own in places
        for basis in bases_of(own, -1, said)
    )


def _moves_statistics(passes: Evaluation) -> bool:
    """Say whether passes in training mode, and without a loss, leave batch statistics behind."""
    idle = passes.passes >= _FEW and not (passes.gradients or passes.routine or passes.measures)
    moved = any(name.rpartition(".")[2] in _STATISTICS for name in passes.touched)
    return idle and passes.training and moved and bool(passes.awake)


def _measuring(trace: Trace[Event]) -> list[Evaluation]:
    """Return the evaluations with a loss that are no part of every window."""
    return [e for e in events(trace, Evaluation) if e.measures and not e.routine]


@invariant("loop", evidence=MEASURED)
def evaluation_leaves_no_trace(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An evaluation leaves the model unchanged, and builds no autograd graph.

    Judges: buffers after evaluations with a loss in which all modules are in evaluation mode;
        evaluations in evaluation mode that build a graph: a note if more than half do.
    Allows: passes of every window; models with modules awake, which evaluation_mode_is_on has;
        evaluations in which parameters change too, since averages and best states are put in for
        some passes. Buffers that are put back or zeroed before the next pass that learns. A buffer
        that is changed once, as a cache that grows, is a note.
    Misses: parameters that a pass edits; what is changed outside of the model; evaluations without
        a loss.
    Why: what validation leaves behind is learned from the validation set, or added to the next
        step's gradients; a graph that nobody needs takes the memory of a training step.
    Source: dragen1860/MAML-Pytorch issue 4 (batch statistics updated at validation time).
    """
    parameters = {p.name for p in events(trace, Parameter)}
    still = [e for e in _measuring(trace) if not (e.awake or parameters.intersection(e.touched))]
    touched = [e for e in still if e.touched]
    names = sorted({name for e in touched for name in e.touched})
    sure = [name for name in names if sum(name in e.touched for e in touched) >= _FEW]
    if touched:
        first = touched[0]
        yield Finding(
            f"an evaluation changes the model of `{trace.subject}`",
            at_step(first.step) + f", {and_more(sure or first.touched)}",
            "changed by " + portion(len(touched), len(still), "evaluations"),
            "as before the evaluation",
            why="" if sure else "perhaps a cache that is filled at the first call",
            rank=Rank.BROKEN if sure else Rank.NOTE,
            event=first,
        )
    yield from _idle_graphs(trace, [e for e in still if not e.training])


def _idle_graphs(trace: Trace[Event], judged: Sequence[Evaluation]) -> Iterator[Finding]:
    """Yield a note where most evaluations build a graph."""
    graphs = [e for e in judged if e.idle]
    if 2 * len(graphs) > len(judged):
        yield note(
            f"an evaluation of `{trace.subject}` builds a graph that nothing uses",
            at_step(graphs[0].step) + f", {graphs[0].module}",
            "a graph in " + portion(len(graphs), len(judged), "evaluations"),
            "no graph",
            why="torch.no_grad() or torch.inference_mode() is missing",
            event=graphs[0],
        )
