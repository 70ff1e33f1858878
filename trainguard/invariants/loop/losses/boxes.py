"""Judgements of boxes: whether they are given as what they are taken for."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_SHARE = 0.25  # of the boxes: a few labels may well be turned round by hand


@invariant("loop", evidence=has_probe("corners", "no overlap of boxes by their corners was seen"))
def boxes_are_given_as_corners(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Boxes whose overlap is computed from their corners are given as corners.

    Judges: tables of boxes, of which torch.max takes the first two columns and torch.min the next
        two, as torchvision.ops.box_iou does, and that stay the same over steps, as anchors and
        labels do: how many boxes end left of where they begin, or above it. A quarter is broken.
    Allows: boxes that a model predicts; equal rows, as of padding, count once.
    Misses: fewer than 8 boxes; tables that are made anew for each batch; boxes that are converted
        from another format than they have; tables on an accelerator.
    Why: the overlap of centres and sizes that are read as corners is a number between 0 and 1
        that means nothing: anchors are matched with objects far away.
    Source: documentation of torchvision.ops.box_iou (boxes in (x1, y1, x2, y2) format) and of
        torchvision.ops.box_convert.
    """
    for probe in events(trace, Probe):
        if probe.probe == "corners" and probe.measured >= _SHARE * probe.reference:
            yield Finding(
                f"boxes of `{trace.subject}` are taken for corners, and are something else",
                "where overlaps are computed",
                portion(probe.measured, probe.reference, "boxes")
                + " end left of where they begin, or above it",
                integer(0, "boxes"),
                why="they may be centres and sizes, or a corner and a size: convert them first, as"
                " torchvision.ops.box_convert does",
                event=probe,
            )
            return
