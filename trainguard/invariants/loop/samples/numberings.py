"""Judgement of the numbers that stand for names, such as those of users and of things."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events, percent


@invariant("loop", evidence=has_probe("numberings", "no two data sets number the same names"))
def numbers_mean_the_same_names(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An embedding index stands for the same token or category in training and evaluation.

    Judges: data sets of loaders that give names their numbers, {name: number}, 8 or more in a row,
        under one attribute each; one is learned from, and another one only evaluated. Whether more
        than a tenth (limit) of the names that both have get another number. A module with
        embeddings is given such numbers of both, and half of the names of one of them or more are
        in the other. The same of columns of names that two objects of one kind, or two lists of
        rows, have in variables, beside columns or tables of numbers, on the CPU.
    Allows: tables whose numbers no module is given, as places of files; names that are numbers
        themselves and may be what is given.
    Misses: names that nobody keeps beside their numbers, or in a table of pandas; of classes.
    Why: a vocabulary that is made anew from the data of the evaluation gives each word the row of
        another one. The evaluation runs, and measures a model that was never trained.
    Source: minqukanq/hierarchical-multi-label-text-classification issue 6 (vocab_to_int of the test
        data is another one).
    """
    most = trace.limit("numbers_mean_the_same_names", 0.1)
    for probe in events(trace, Probe):
        if probe.probe == "numberings" and probe.measured > most * probe.reference:
            yield Finding(
                f"an evaluation of `{trace.subject}` maps names to other indices than its training",
                f"`{probe.label.lstrip('.')}` of its data set",
                portion(probe.measured, probe.reference, "names") + " have another number",
                "at most " + percent(most),
                why="it is made anew from other data: give the data of the evaluation the table of"
                " the training",
                event=probe,
            )
            return
