"""Judgements of the files of a run: how they are written, and which of them are deleted."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, integer
from trainguard.events.base import Event
from trainguard.events.checkpoint import Resumption, Rotation
from trainguard.events.trace import Trace
from trainguard.invariants.checkpoint.wording import began_anew
from trainguard.invariants.loop.wording import events

_TEXT = "perhaps the names are put in order as text, where step_10 comes before step_9"


@invariant("checkpoint", probe="interrupt", needs=("resume",))
def checkpoint_write_is_atomic(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A run killed in the middle of a save can resume from the previous checkpoint.

    Judges: a run that the system kills as soon as a file of its second save has half its size; it
        is resumed from what that leaves behind.
    Allows: any way to get there: a temporary file that is renamed, a loader that falls back to an
        older checkpoint, two files in turns.
    Misses: a save that is interrupted between two files; power failures, which lose what was not
        flushed to the disk; Windows. Where a resume fails without any interruption, nothing is
        judged.
    Why: jobs are killed when the disk is full or their time is over, and that is when they save;
        the file that is half written then is the only one.
    Source: Lightning-AI/pytorch-lightning issue 688; Pillai et al. 2014, All File Systems Are Not
        Created Equal.
    """
    whole, *cut = events(trace, Resumption)
    if whole.error or not whole.made or began_anew(trace):
        return
    for told in cut:
        if told.error or told.began == 0 or not told.made:
            yield Finding(
                f"an interrupted save of `{trace.subject}` leaves no checkpoint to resume from",
                "killed in the save that follows the one after " + at_step(told.saved),
                f"it raised {told.error}" if told.error else "it begins anew",
                f"the parameters of step {told.saved}",
                why=f"{told.limit} of {told.size} bytes were written under the final name: write to"
                " another name, then os.replace it",
                event=told,
            )


@invariant("checkpoint", probe="rotate", needs=("rotation",))
def rotation_keeps_the_newest(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Checkpoint rotation deletes only old checkpoints, never the newest ones or other files.

    Judges: each numbered file or folder that the run deletes, or that `rotate` deletes in folders
        made for it: numbers across 10, 100 and 1000, other people's files, names with a word in the
        place of the number, another rank. Newer is what has the higher number.
    Allows: deleting the oldest before the next is written; keeping more than declared in a run,
        since the best ones stay too. Without keep=, a newest one that is deleted because others are
        better. Rotation by the time of writing is a note.
    Misses: in a run, the numbers that it does not reach; links and pointers that `rotate` does not
        find in the folders made for it; what other processes delete.
    Why: `sorted(names)` puts step_10 before step_9, so that the newest is deleted at once and the
        run can only go on from an old one.
    Source: huggingface/transformers issues 27138 and 26961; huggingface/accelerate issue 1163.
    """
    said: set[str] = set()
    for told in events(trace, Rotation):
        deleted = told.quantity == "deleted"
        if told.quantity not in said:  # the first of each kind: the others follow from it
            found = _wrongly_deleted(trace, told) if deleted else _other(trace, told)
            if found is not None:
                said.add(told.quantity)
                yield found


def _wrongly_deleted(trace: Trace[Event], told: Rotation) -> Finding | None:
    """Return the finding of a deleted checkpoint that should have stayed, if it should have."""
    newest = told.newer == 0 and told.older > 0 and (told.keep > 0 or told.alphabetical)
    # One fewer may be newer where the oldest is deleted before the next one is written.
    early = told.keep > 1 and told.newer < told.keep - 1 and told.older > 0
    if not (newest or early):
        return None
    return Finding(
        f"`{trace.subject}` deletes a newer checkpoint and keeps an older one",
        f"{told.name}, {told.at}",
        integer(told.older) + f" older and {told.newer} newer kept",
        "the " + integer(told.keep) + " newest kept" if told.keep else "the newest kept",
        why="perhaps the time of writing decides, which a copy of the folder changes"
        if told.touched
        else _TEXT,
        rank=Rank.NOTE if told.touched else Rank.BROKEN,
        event=told,
    )


def _other(trace: Trace[Event], told: Rotation) -> Finding | None:
    """Return the finding of anything else that a rotation must not do, if it did."""
    subject = f"`{trace.subject}`"
    if told.quantity == "kept" and told.count <= told.keep:
        return None
    summary, measured, allowed, why = {
        "kept": (
            f"{subject} keeps more checkpoints than it should",
            f"{told.count} kept",
            f"{told.keep} kept",
            "the disk fills up",
        ),
        "raised": (
            f"{subject} fails on a folder that it should rotate",
            f"it raised {told.detail}",
            "names that are no number left alone",
            "perhaps each name is taken for one with a number in it",
        ),
        "link": (
            f"{subject} deletes a checkpoint that a link points to",
            f"{told.name} leads nowhere",
            "links that lead to a checkpoint",
            "perhaps the best checkpoint is a link to one that the rotation deletes",
        ),
        "foreign": (
            f"{subject} deletes what is not its to rotate",
            f"{told.name} deleted",
            "only names with a number in the place of the step",
            "perhaps a pattern such as step_* fits more than it should",
        ),
        "rank": (
            f"{subject} deletes in a process that is not the first",
            f"{told.name} deleted",
            "nothing deleted",
            "several processes delete at once, and one fails on what another has deleted",
        ),
    }[told.quantity]
    return Finding(summary, told.at, measured, allowed, why=why, event=told)
