"""Judgements of runs that are killed after a save and go on in a new process."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import at_step, integer, number
from trainguard.events.base import Event
from trainguard.events.checkpoint import Departure, Part, Resumption
from trainguard.events.trace import Trace
from trainguard.invariants.checkpoint.wording import (
    began_anew,
    comparable,
    departure,
    format_count,
    lost_parts,
    resumption,
)
from trainguard.invariants.loop.wording import events


@invariant("checkpoint", probe="resume", needs=("resume",))
def resume_continues_the_run(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A run killed after a save and resumed in a new process matches the uninterrupted run.

    Judges: the batches, the losses, the parameters after each step, and the number of steps,
        against the same run without an interruption; bit for bit on the CPU. The new process begins
        as the first one did, with the same seed. It is killed by half of the run; where nothing is
        found and that took less than 10 s, after the first save and after the last too.
    Allows: losses within 1e-5 of each other where an accelerator computed them, and no comparison
        of parameters there. Where checkpoint_is_complete finds something, only the batches of the
        first step, since all that follows differs.
    Misses: what makes a difference only after the declared steps; what depends on the order of a
        set of strings, which forked processes share; runs that do not repeat themselves are not
        judged.
    Why: a generator that is not restored repeats its dropout masks and augmentations, and a loader
        that begins its epoch again never shows the end of the data.
    Source: huggingface/transformers issue 17032 and pull request 46628 (generators that are
        restored too late); huggingface/accelerate issue 2016 (batches that are seen again).
    """
    told = resumption(trace)
    if told.error:
        yield _make_refusal_finding(trace, told)
    elif not told.made:
        yield Finding(
            f"`{trace.subject}` makes no step after a resume",
            "resumed after " + at_step(told.saved),
            integer(0, "steps"),
            format_count(told.left, "step"),
            why="perhaps it takes its total number of steps for already reached",
        )
    elif began_anew(trace):
        yield Finding(
            f"`{trace.subject}` starts from scratch instead of resuming",
            "resumed after " + at_step(told.saved),
            "the parameters of step " + integer(0),
            f"the parameters of step {told.saved}",
            why="perhaps the checkpoint is not looked for where it was written, or not loaded",
        )
    else:
        yield from _different(trace, told)


@invariant("checkpoint", probe="resume", needs=("resume",))
def resume_takes_the_newest(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A resumed run continues from the newest checkpoint.

    Judges: the parameters before its first step, which tell at which step of the run without an
        interruption it goes on; and the files that it reads, where one with a higher number stands
        beside them.
    Allows: older files where nothing newer of their kind was there, such as the last of a run
        beside a newer best; a newer one that was read, and could not be used.
    Misses: the order of names beyond the steps that are declared: `step_9` comes after `step_10`
        only in a run that has both; files that are not opened by Python; names without a number.
    Why: names are put in alphabetical order, and the run falls back to an older state at each
        resume.
    Source: allenai/open-instruct issue 542 (step_9000 after step_10000); Lightning-AI/litgpt pull
        request 661.
    """
    told = resumption(trace)
    if comparable(trace) and 0 <= told.began < told.saved and told.newer:
        yield Finding(
            f"`{trace.subject}` does not go on from its newest checkpoint",
            "resumed after " + at_step(told.saved) + f", where {told.newer} stands",
            f"the parameters of step {told.began}",
            f"the parameters of step {told.saved}",
            why="perhaps names are compared as text, where step_9 comes after step_10",
        )


def _make_refusal_finding(trace: Trace[Event], told: Resumption) -> Finding:
    """Return the finding of a run that raises when it is resumed."""
    after = f", after {format_count(told.made, 'step')} of its own" if told.made else ""
    unsafe = "weights_only" in told.error or "WeightsUnpickler" in told.error
    return Finding(
        f"`{trace.subject}` cannot be resumed",
        "resumed after " + at_step(told.saved) + f"{after}",
        f"it raised {told.error}",
        format_count(told.left, "step"),
        why="torch.load takes tensors and plain values only, and what was saved holds others: the"
        " state of a NumPy generator, a configuration, a whole module"
        if unsafe
        else "",
        source=told.source,
    )


def _different(trace: Trace[Event], told: Resumption) -> Iterator[Finding]:
    """Yield the first thing in which the steps of a resumed run are others, and their number."""
    batch, loss = departure(trace, "batch"), departure(trace, "loss")
    moved = departure(trace, "parameters")
    lost = [p.kind for p in lost_parts(trace)]
    incomplete = bool(lost) or departure(trace, "rate") is not None
    if incomplete:
        told_first = batch is not None and batch.after == 0
        if batch is not None and told_first and not {"parameters", "buffers"} & set(lost):
            yield _other_batch(trace, batch)
    elif batch is not None and (loss is None or batch.after <= loss.after):
        yield _other_batch(trace, batch)
    elif loss is not None:
        yield Finding(
            f"`{trace.subject}` has other losses after a resume",
            at_step(loss.step) + f", the {_ordinal(loss.after)} after the resume",
            number(loss.measured, "", ".9g"),
            number(loss.reference, "", ".9g"),
            why=_generators(trace) or "something that the loss depends on is not restored",
        )
    elif moved is not None:
        yield Finding(
            f"`{trace.subject}` updates its parameters otherwise after a resume",
            at_step(moved.step) + f", the {_ordinal(moved.after)} after the resume",
            "other parameters, from the same loss",
            "the same parameters",
            why=_generators(trace) or "perhaps a setting of the optimizer is not restored",
        )
    if told.ended and told.made != told.left:
        yield Finding(
            f"`{trace.subject}` makes another number of steps after a resume",
            "resumed after " + at_step(told.saved),
            format_count(told.made, "step"),
            format_count(told.left, "step"),
            why="perhaps the counter of its steps or epochs is not restored",
        )


def _other_batch(trace: Trace[Event], batch: Departure) -> Finding:
    """Return the finding of a batch that the run would not have had at that step."""
    known = batch.measured >= 0
    earlier = known and batch.measured < batch.reference
    again = earlier * "perhaps the epoch is begun again, and the place in it is not restored"
    return Finding(
        f"`{trace.subject}` is given other batches after a resume",
        at_step(batch.step) + f", the {_ordinal(batch.after)} after the resume",
        "the batch of step " + integer(batch.measured) if known else "a batch of no step",
        "the batch of step " + integer(batch.reference),
        why=", and ".join(filter(None, (_generators(trace), again)))
        or "perhaps the order of the data is drawn anew",
    )


def _generators(trace: Trace[Event]) -> str:
    """Name the generators that do not stand where they stood."""
    lost = [p.name for p in events(trace, Part) if p.kind == "generator" and not p.same]
    if not lost:
        return ""
    return f"the state of the generator of {', '.join(lost)} is not restored"


def _ordinal(after: int) -> str:
    """Write which of the steps after the resume one is."""
    words = ("first", "second", "third")
    return f"{words[after]} step" if after < len(words) else f"{after + 1}th step"
