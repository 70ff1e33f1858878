"""Judgements of a step made in another way: without its checkpoints, and with other noise."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import Measure, at_step, portion
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.loop.counterfactuals import answers_to
from trainguard.invariants.loop.evidence import has_answer

_LEAST_NOISES = 2  # answers


@invariant("loop", evidence=has_answer("checkpoints bypassed"))
def checkpoints_keep_gradients(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Activation checkpointing changes no gradient.

    Judges: a step that a forked child made again with every `torch.utils.checkpoint` bypassed, from
        the same random state.
    Allows: rounding, 1e-4 of the largest gradient (1e-1 in dtypes of 8 to 11 bits).
    Misses: checkpointing that is not that of torch.
    Why: a reentrant checkpoint whose inputs need no gradient cuts off all that lies before it, and
        only warns; dropout that is drawn anew gives gradients of another function.
    Source: PyTorch, torch.utils.checkpoint ("None of the inputs have requires_grad=True").
    """
    for answer in answers_to(trace, "checkpoints bypassed"):
        if answer.measured > 0:
            yield Finding(
                f"checkpoints change the gradients of `{trace.subject}`",
                at_step(answer.step),
                portion(answer.measured, answer.reference, "parameters")
                + " have another gradient without checkpoints",
                "the same gradients",
                smallest=answer.smallest,
                why="perhaps a reentrant checkpoint whose inputs need no gradient:"
                " use_reentrant=False; or preserve_rng_state=False with dropout",
                event=answer,
                source=answer.source,
            )


@invariant("loop", evidence=has_answer("other noise"))
def dropout_matters(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Where dropout strikes, other noise makes another step.

    Judges: steps that a forked child made again from another seed, where dropout strikes 32
        elements or more on the average.
    Allows: anything but the same loss and gradients to the last bit in two steps.
    Misses: one of several dropouts that does not matter.
    Why: `self.dropout(hidden)` whose result is thrown away regularises nothing.
    Source: discuss.pytorch.org, dropout called without assigning its result.
    """
    answers = answers_to(trace, "other noise")
    same = [answer for answer in answers if answer.measured == 0]
    if len(same) >= _LEAST_NOISES and len(same) == len(answers):
        first = same[0]
        yield Finding(
            f"dropout changes nothing in `{trace.subject}`",
            f"steps {', '.join(str(answer.step) for answer in same)}",
            Measure("the same loss and gradients from another seed", len(same), "steps"),
            "another loss, or other gradients",
            why="perhaps the result of dropout is thrown away: hidden = self.dropout(hidden)",
            event=first,
            source=first.source,
        )
