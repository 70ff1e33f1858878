"""Judgements of the processes that load data: what each of them draws, and what it serves."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_COVERED = 0.95  # of the rows: a stream may end in the middle of a batch
_ROWS = 32


@invariant("loop", evidence=has_probe("generators", "no workers held generators of their own"))
def workers_draw_different_numbers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each worker process draws its own random numbers.

    Judges: data sets that are trained on and hold a random generator, or whose loader has a
        worker_init_fn: two copies are asked for different samples, as two workers would be.
    Allows: generators that are set by the index, the worker or its seed; those that nothing is
        drawn from; data that are only evaluated.
    Misses: streams; loaders made after others have started threads; runs on an accelerator.
    Why: a generator that is made before the workers start is copied into each of them, and into
        those of the next epoch: the augmentation of all samples repeats itself.
    Source: pytorch/pytorch issue 5059; the same for numpy's own generator.
    """
    for probe in events(trace, Probe):
        if probe.probe == "generators":
            yield Finding(
                f"the workers of a loader of `{trace.subject}` draw the same random numbers",
                probe.label,
                "the same state in " + integer(2, "workers") + ", before they draw from it",
                "another state in each worker",
                why="each worker gets a copy of the generator: seed it in worker_init_fn, from"
                " torch.utils.data.get_worker_info().seed",
                event=probe,
            )
            return


@invariant("loop", evidence=has_probe("copies", "no stream was served by several workers"))
def workers_share_the_data(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The workers of an IterableDataset split the stream between them.

    Judges: the first 32768 rows of each pass through an IterableDataset with 2 workers or more that
        is trained on: how many different rows came from each of the workers, once.
    Allows: 95 % (limit); rows that one worker repeats.
    Misses: streams that are augmented at random; fewer than 32 different rows.
    Why: each worker has a copy of the stream, and serves all of it: an epoch has each sample as
        often as there are workers, and the numbers of steps and of samples are wrong.
    Source: pytorch.org/docs/stable/data.html (IterableDataset, "each replica must be configured
        differently").
    """
    covered = trace.limit("workers_share_the_data", _COVERED)
    for probe in events(trace, Probe):
        if probe.probe == "copies" and probe.measured >= max(_ROWS, covered * probe.reference):
            yield Finding(
                f"each worker of a loader of `{trace.subject}` serves the whole stream",
                probe.label,
                portion(probe.measured, probe.reference, "rows") + " came from every worker",
                "each from one worker",
                why="split the stream in __iter__ by get_worker_info().id and .num_workers",
                event=probe,
            )
            return
