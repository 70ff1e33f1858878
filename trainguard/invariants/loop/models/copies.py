"""Judgements of copies of samples that a step makes for itself."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # looks


@invariant("loop", evidence=has_probe("separated copies", "no copies of samples were seen"))
def copies_come_together(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A reduction over repeated copies combines the copies of one sample, not other samples.

    Judges: layers that are given rows of an input several times each, all in turn or one after the
        other, and tables of as many samples by as many copies that what is made of them is viewed
        as, and that a loss reduces along its copies, in 2 looks or more: whether the table has the
        order of the rows.
    Allows: as many copies as samples; means over all samples of one copy.
    Misses: rows that are no input of a linear layer, or that learn; other shapes, accelerators.
    Why: `x.repeat(k, 1)` has all samples in turn, and `.view(n, k)` takes k of them for copies of
        one: a bound over several draws, or a mean of votes, mixes different samples.
    Source: documentation of torch.Tensor.repeat and torch.repeat_interleave ("different from
        torch.Tensor.repeat but similar to numpy.repeat").
    """
    for probe in events(trace, Probe):
        if probe.probe != "separated copies" or probe.measured < _LEAST:
            continue
        if probe.measured < probe.reference:
            continue
        samples, copies, made = probe.label.split(" ")
        order = f"({copies}, {samples})" if made == "repeat" else f"({samples}, {copies})"
        other = "repeat_interleave" if made == "repeat" else "repeat"
        yield Finding(
            f"`{trace.subject}` groups different samples as copies of one sample",
            f"{copies} copies of each of {samples} samples, as `{made}` makes them",
            portion(probe.measured, probe.reference, "steps")
            + " reduce groups of different samples",
            integer(0, "steps"),
            why=f"rows in that order are a table of {order}: view them so, or make the copies by"
            f" {other}",
            event=probe,
        )
