"""Judgement of what a run keeps: nothing grows with its steps."""

from collections.abc import Iterator
from itertools import pairwise

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.loop import RunGrowth
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import events

_GRAPHS = 24  # kept at once: more than a queue of a few batches
_STALE = 8  # different steps whose graphs are kept: a window of a truncated history has fewer
_STEADY = 6  # looks at which they were more
_LATE = 2  # looks, of which one shows that there is no bound to them yet
_WHOLE = 0.9  # of all graphs since the first step
_RISES = 3  # between looks: what is put in place once or twice is no growth
_STAGES = 5  # optimizers after the first: a run of a few stages or tasks has fewer
_REACHED = 3  # looks in a row, the last at step 8 or later: a window of a few steps is no growth
_REBUILT = 10  # optimizers in a row that lived for one step or two


@invariant("loop")
def nothing_grows(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A run does not accumulate graphs, hooks, handlers or optimizers over its steps.

    Judges: graphs of outputs, hooks on a module or parameter, handlers of a logger, and optimizers
        that are made anew for the same parameters so that their state is lost. Losses of steps 1,
        2, 4, 8, ... of which 3 in a row have what was behind the loss before behind them as well.
        Graphs of 8 steps or more that are over, where each of 6 looks found more of them.
    Allows: 24 graphs at once that do not go on growing; hooks and handlers that grow fewer than 3
        times; optimizers that are
        made anew while their parameters were changed in between, or that had no state. It is a note
        where graphs are let go now and then, and where 5 optimizers or more, of more than 2 steps
        each, follow the first: one for each task or stage is a choice.
    Misses: growth that begins late in a long run; memory that is kept in other ways.
    Why: a loss that is added up with its graph, or hooks that are set at each evaluation, slow a
        run down until its memory is full; an optimizer without its state never gets momentum.
    Source: pytorch.org/docs/stable/notes/faq.html ("Don't accumulate history across your training
        loop"); NeuroBench/neurobench issue 184.
    """
    grown = {growth.kind: growth for growth in events(trace, RunGrowth)}
    for growth in events(trace, RunGrowth):
        if growth.kind == "graphs":
            yield from _judge_graphs(trace, growth, grown.get("stale"))
        elif growth.kind == "history":
            yield from _judge_history(trace, growth)
        elif growth.kind in _TOLD:
            yield from _judge_additions(trace, growth)
        elif growth.kind == "optimizers":
            yield from _judge_optimizers(trace, growth)


def _judge_graphs(
    trace: Trace[Event], growth: RunGrowth, stale: RunGrowth | None
) -> Iterator[Finding]:
    """Yield a finding where outputs of many steps ago are still there with their graphs."""
    kept = max(growth.counts, default=0)
    whole = growth.counts[-1] >= max(_GRAPHS, _WHOLE * growth.among[-1])
    whole = whole or (stale is not None and _keeps_growing(stale.counts))
    if kept >= _GRAPHS or whole:
        yield Finding(
            f"`{trace.subject}` keeps the graphs of steps that are over",
            f"in `{growth.name}`" if growth.name else "",
            integer(kept, "graphs") + " at once, none of them of the latest steps",
            "fewer than " + integer(_STALE if kept < _GRAPHS else _GRAPHS, "graphs"),
            why="a loss or an output is added up or put in a list with its graph, so that memory"
            " grows with each step; keep loss.item() or output.detach()",
            rank=Rank.BROKEN if whole else Rank.NOTE,
            event=growth,
        )


def _keeps_growing(counts: tuple[int, ...]) -> bool:
    """Say whether graphs of ever more steps are kept, up to the last look."""
    changes = [after - before for before, after in pairwise(counts)]
    rises = sum(change > 0 for change in changes)
    steady = bool(changes) and min(changes) >= 0 and max(changes[-_LATE:]) > 0
    return steady and rises >= _STEADY and counts[-1] >= _STALE


_TOLD = {
    "hooks": (
        "`{}` sets the same hooks again and again",
        "hooks on one module",
        "keep the handle that registering returns and remove() it, or register once",
    ),
    "handlers": (
        "`{}` adds handlers to a logger again and again",
        "handlers on one logger",
        "each message is written as often; add them once, or look at logger.handlers first",
    ),
}


def _judge_history(trace: Trace[Event], growth: RunGrowth) -> Iterator[Finding]:
    """Yield a finding where a pass backward goes through all steps before it."""
    row = 0
    rows = list(zip(growth.steps, growth.counts, growth.among, strict=True))
    for (_, before, _), (step, nodes, reached) in pairwise(rows):
        row = row + 1 if reached and nodes > before else 0
        if row >= _REACHED and step >= 2**_REACHED:
            first, last = rows[0], rows[-1]
            yield Finding(
                f"each pass backward of `{trace.subject}` goes through the steps before it again",
                f"steps {first[0]} to {last[0]}",
                integer(last[1], "operations") + f" behind a loss, {first[1]} at first",
                "as many in every step",
                why="a state is carried on with its graph, and retain_graph=True keeps it from"
                " failing: carry on hidden.detach(), and leave retain_graph out",
                event=growth,
            )
            return


def _judge_additions(trace: Trace[Event], growth: RunGrowth) -> Iterator[Finding]:
    """Yield a finding where there are ever more hooks or handlers, and never fewer."""
    steps = list(pairwise(growth.counts))
    rises = sum(after > before for before, after in steps)
    if rises < _RISES or any(after < before for before, after in steps):
        return
    summary, noun, why = _TOLD[growth.kind]
    yield Finding(
        summary.format(trace.subject),
        growth.name,
        integer(growth.counts[-1]) + f" {noun}, {growth.counts[0]} at first",
        integer(growth.counts[0]) + f" {noun}",
        why=why,
        event=growth,
    )


def _judge_optimizers(trace: Trace[Event], growth: RunGrowth) -> Iterator[Finding]:
    """Yield a finding where optimizers are made anew and what they had gathered is lost."""
    lives = growth.among
    if len(lives) < _STAGES:
        return
    short = len(lives) >= _REBUILT and max(lives) <= 2
    yield Finding(
        f"`{trace.subject}` makes its optimizer anew and loses what it had gathered",
        growth.name,
        integer(len(lives) + 1, "optimizers")
        + f" for the same parameters, {min(lives)} to {max(lives)} steps each",
        integer(1, "optimizers"),
        why="momentum and averages of gradients begin at zero each time; make the optimizer once,"
        " before the loop",
        rank=Rank.BROKEN if short else Rank.NOTE,
        event=growth,
    )
