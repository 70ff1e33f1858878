"""Judgements of batch statistics: those of an evaluation, and those that passes learn by."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, integer, number
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events, in_line, line_of_origin, lines_of_origin

_BRIEF = 0.9  # a momentum of batch norm: from here on nine tenths are those of the last batch


@invariant("loop", evidence=has_probe("statistics", "no batch norm was evaluated"))
def statistics_follow_the_data(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Batch normalisation evaluates with running statistics estimated from the data.

    Judges: layers of batch normalisation in an evaluation: whether their mean is still 0 and their
        variance 1 although they have seen batches, or although they belong to an average that
        follows its model, whose own statistics moved; or whether those of such an average stay as
        they were between two evaluations. And whether their momentum is from 0.9 (limit) to 1
        though the steps see different batches.
    Allows: evaluations before the first step, models that never ran in training mode; a momentum of
        exactly 1, as where statistics are taken anew; one batch that is all there is.
    Misses: statistics that follow too slowly, or that stand still later on and are no average's.
    Why: an average of the parameters alone leaves the buffers as they were made, and a momentum of
        zero never moves them: the evaluation normalises by numbers that have to do with nothing.
        One of 0.99, which means the opposite in other libraries, leaves the last batch alone.
    Source: CuriousAI/mean-teacher issue 9; Stack Overflow question 47167409; the documentation of
        torch.nn.BatchNorm1d ("different from the one used in optimizer classes").
    """
    buffers = "the average follows the parameters: copy the buffers of its model too"
    buffers += in_line(*lines_of_origin(trace, "average"))
    for probe in events(trace, Probe):
        if probe.probe == "statistics" and probe.reference > 0:
            yield Finding(
                f"an evaluation of `{trace.subject}` uses batch statistics that never moved",
                at_step(probe.step) + f", {probe.label}",
                "mean 0 and variance 1, " + integer(probe.measured, "batches") + " seen",
                "the statistics of some data",
                why="perhaps the momentum is zero: in torch it is the share of the new batch"
                if probe.measured
                else buffers,
                event=probe,
                source=(line_of_origin(trace, probe.label) if probe.measured else "")
                or probe.source,
            )
        if probe.probe == "kept statistics":
            yield Finding(
                f"an evaluation of `{trace.subject}` uses stale batch statistics",
                at_step(probe.step) + f", {probe.label}",
                "as they were, while the model has seen " + integer(probe.measured, "batches"),
                "statistics that follow as the average does",
                why=buffers,
                event=probe,
            )
    yield from _brief(trace)


def _brief(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for statistics that are those of the last batch, where there are several."""
    least = trace.limit("statistics_follow_the_data", _BRIEF)
    batches = {number for step in events(trace, Step) for number in step.fingerprints}
    for probe in events(trace, Probe):
        if probe.probe == "brief statistics" and probe.measured >= least and len(batches) > 1:
            yield Finding(
                f"an evaluation of `{trace.subject}` uses the statistics of the last batch",
                f"{probe.label}, in {probe.reference:.0f} of its layers",
                "momentum " + number(probe.measured) + ", the share of the new batch in torch",
                "below " + number(least),
                why=f"perhaps {1 - probe.measured:.3g} is meant: in other libraries the momentum is"
                " the share of what was there before",
                event=probe,
            )


@invariant("loop", evidence=has_probe("alone", "no batch norm was trained"))
def batch_statistics_have_samples(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Batch normalisation is trained on more than one sample at a time.

    Judges: passes that learn from one sample through a layer of batch normalisation in training
        mode, in a run whose others have 8 samples (limit) or more: a note of two of them or more.
    Allows: runs in which every fourth pass has one sample, or more, as where batches are that
        small; layers in evaluation mode.
    Misses: two samples; layers within a pass that splits its batch.
    Why: the last batch of an epoch holds what is left. A single sample is normalised by itself, so
        that what sets it apart is gone, and the running statistics move toward it.
    Source: torch.nn.BatchNorm1d ("Expected more than 1 value per channel when training", where a
        sample has one place; one with several passes); pytorch/pytorch issue 4534.
    """
    for probe in events(trace, Probe):
        least = trace.limit("batch_statistics_have_samples", 8.0)
        if probe.probe == "alone" and probe.measured > 1 and probe.reference >= least:
            yield Finding(
                f"`{trace.subject}` takes batch statistics of a single sample",
                f"the training passes of {probe.label}",
                integer(probe.measured, "passes") + " with 1 sample",
                integer(probe.reference, "samples") + ", as the others have up to",
                why="what is left of an epoch is one sample: drop_last=True, or another batch size",
                rank=Rank.NOTE,
                event=probe,
                source=probe.source,
            )
