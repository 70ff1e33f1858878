"""Judgements of what a checkpoint holds, by what is there after it was loaded."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, integer
from trainguard.events.base import Event
from trainguard.events.checkpoint import Load, Part
from trainguard.events.trace import Trace
from trainguard.invariants.checkpoint.wording import comparable, departure, lost_parts, resumption
from trainguard.invariants.wording import number

_SENTENCES = {
    "parameters": "does not get its parameters back as they were",
    "buffers": "does not get its buffers back",
    "optimizer": "does not get the state of its optimizer back",
    "average": "does not get its averaged copy back",
    "scaler": "does not get the scale of its losses back",
    "plateau": "does not get the state of its plateau rule back",
}
_WHY = {
    "parameters": "perhaps they are saved in half precision, or others are saved in their place",
    "buffers": "perhaps the parameters are saved by themselves: state_dict() has the buffers too",
    "optimizer": "perhaps it is not saved, not loaded, or loaded into another one than is stepped",
    "average": "perhaps it is begun again from the model, or the number of its updates is",
    "scaler": "perhaps the gradient scaler is made anew: its first steps overflow and are skipped",
    "plateau": "perhaps the rule is made anew: it forgets its best metric and how long it waited",
}


@invariant("checkpoint", probe="resume", needs=("resume",))
def checkpoint_is_complete(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A resumed run restores all the training state that it had when it was saved.

    Judges: before the first step after a resume, the parameters and buffers of what is trained, the
        state of its optimizers, averaged copies (EMA, teachers), the gradient scaler's scale and
        the counters of a plateau rule, bit for bit; the learning rates of the steps after it,
        within 1e-6; and three steps after it, where the parameters are those of the run without
        an interruption, whether the averaged copies are too.
    Allows: buffers that a module's own state_dict leaves out; copies that neither move as an
        average does nor are called one; a scheduler whose rates are right.
    Misses: averages of runs that saved before their third step; schedulers that would have lowered
        the rate only after the declared steps; plateau rules that are none of torch's; parts of a
        run that goes on from an older checkpoint than the newest.
    Why: Adam without its moments takes steps of full size in all directions, an average that begins
        anew is worse for thousands of steps, and a plateau rule that forgets waits forever.
    Source: huggingface/pytorch-image-models issue 871; PyTorch's tutorial on saving and loading
        models (a general checkpoint has more than the model).
    """
    if not comparable(trace):
        return
    lost = lost_parts(trace)
    for part in lost:
        yield _make_finding(trace, part)
    rate = departure(trace, "rate")
    if rate is not None and not any(part.kind == "optimizer" for part in lost):  # it has the rates
        yield Finding(
            f"`{trace.subject}` does not get its learning rate back",
            at_step(rate.step) + ", after a resume",
            number(rate.measured),
            number(rate.reference),
            why="perhaps the scheduler is made anew and begins at its first step",
        )


@invariant("checkpoint", probe="resume", needs=("resume",))
def loading_is_safe(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Loading a checkpoint executes no code stored in it.

    Judges: the calls of torch.load and pickle.load, in the team's own lines, that read the files of
        the run when it is resumed.
    Allows: weights_only=True, which is the default from torch 2.6 on; formats without code, such as
        safetensors; what a library loads by itself. A note, unless safe=True is promised.
    Misses: loaders that were imported by name (`from torch import load`), numpy and joblib; files
        that are read only when nothing is resumed.
    Why: a checkpoint is pickled code: whoever can put one into the folder can run anything, and one
        that holds a whole module cannot be read once the class has moved.
    Source: the documentation of torch.load; CVE-2025-32434.
    """
    rank = Rank.BROKEN if trace.promises.get("safe") else Rank.NOTE
    for load in trace:
        if isinstance(load, Load):
            yield Finding(
                f"`{trace.subject}` loads its checkpoint in a way that may execute code",
                load.file,
                load.call if load.call == "pickle.load" else "torch.load with weights_only=False",
                "weights_only=True, or a format without code",
                why=f"the file holds {load.obstacle}, which no safe loader takes"
                if load.obstacle
                else _why(load),
                rank=rank,
                event=load,
            )


def _why(load: Load) -> str:
    """Say what can be done about a call whose file has nothing that stands in the way."""
    return "" if load.call == "pickle.load" else "the file loads with weights_only=True as it is"


def _make_finding(trace: Trace[Event], part: Part) -> Finding:
    """Return the finding of one part of the state that was not restored."""
    total = f" of {part.of}" if part.of > 1 else ""
    place = f"{part.name}: {part.first}" if part.first else part.name
    return Finding(
        f"`{trace.subject}` {_SENTENCES[part.kind]}",
        f"{place}, resumed after " + at_step(resumption(trace).saved),
        integer(part.count) + f"{total} differ" if part.count else "another one",
        integer(0) + f"{total} differ" if part.count else "the one that was saved",
        why=_WHY[part.kind],
        event=part,
    )
