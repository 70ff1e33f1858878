"""The events of a run of several processes: what each has, to be held against the others."""

from collections.abc import Iterable
from dataclasses import dataclass

from trainguard.events.base import Event

GENERATORS = ("torch", "numpy", "random")  # those of a process that a script seeds
SUM_DIGITS = 16  # of 64 bits
FIRST_CALLS, LAST_CALLS = 512, 64  # of a group, each of which is told
FEW_VALUES = 8  # that a reduction has, to be told one by one
MOST_MARKS = 512  # sums of the calls in between


def write_sums(sums: Iterable[int]) -> str:
    """Return the sums of one look as they are told to the other processes."""
    return "".join(f"{each % 2**64:0{SUM_DIGITS}x}" for each in sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSums(Event):
    """
    The bits of an optimizer's parameters at some steps, added up, in one process of several.

    optimizer, names: its name, and what each sum is of ("Net.fc1.weight").
    replicas: the group in which DistributedDataParallel makes replicas ("0:8:2"); "" elsewhere.
    sharded: whether other processes hold parts of the parameters, so that nothing is to be alike.
    lone: whether each process may go its own way for a while (local SGD, uneven inputs).
    exchanged: steps before which the processes had exchanged something since the last step.
    begun: whether the run ended in a pass of another step, after the last one that was made.
    draws: a number for what each generator has drawn between two of the first steps; 0 for nothing.
    steps, sums: after which steps (-1: before the first one), and the sums there.
    buffers: likewise one sum of all buffers, where nobody keeps those alike; empty elsewhere.
    states: likewise one sum of what the optimizer keeps (momenta, steps), 0 where that is nothing.
    shares: of what is sharded only that is summed of which several processes hold the same: who
        holds each ("0:2:1"), with "plain" behind it where nothing but the mesh of others says so.
    sizes: their norms at the last look. tensor: the group of tensor parallelism; "" elsewhere.
    """

    optimizer: str
    names: tuple[str, ...] = ()
    replicas: str = ""
    sharded: bool = False
    lone: bool = False
    exchanged: int = 0
    draws: tuple[tuple[int, ...], ...] = ()
    begun: bool = False
    steps: tuple[int, ...] = ()
    sums: tuple[tuple[int, ...], ...] = ()
    buffers: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    shares: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()
    tensor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile(Event):
    """
    A file that one process of several has saved to.

    rank: the process. name: its name, as it was given. folder: which folder of which machine it is
    in. steps: how many steps had been made each time, the first 64.
    """

    rank: int = 0
    name: str
    folder: str
    steps: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShards(Event):
    """
    A checkpoint in shards (torch.distributed.checkpoint), as one process finds it at its end.

    rank: the process. name, folder: the folder that they are in, and of which machine it is.
    shards: how many files its `.metadata` names. lost: how many of them are not there; missing: the
        names of the first of these.
    changed: whether files were added or taken away after the metadata was written.
    """

    rank: int = 0
    name: str
    folder: str
    shards: int = 0
    lost: int = 0
    missing: tuple[str, ...] = ()
    changed: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSamples(Event):
    """
    What a loader has served one process of several in the first passes that it was trained on.

    rank: the process. data: the number of the data set, among those that a process is trained on;
    size: of how many samples. sampler: its class. share: which part of how many the sampler is to
    serve ("0 of 2"); "" where it does not say. shuffles: whether it is one of torch's that does.
    epochs: that of the sampler in each pass, -1 where it has none. drawn: samples of each pass.
    counts: of each pass a digit for each of the samples that are followed: how often it was served.
    """

    rank: int = 0
    data: int
    size: int
    sampler: str
    share: str = ""
    shuffles: bool = False
    epochs: tuple[int, ...] = ()
    drawn: tuple[int, ...] = ()
    counts: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSamples(Event):
    """
    Which samples of a data set one process of several learns from, and which it holds out.

    rank: the process. data: what tells its rows from those of others. learned, evaluated: a digit
    for each of the samples that are followed, whether its loaders serve it for that. source: the
    line of an evaluation.
    """

    rank: int = 0
    data: str
    learned: str
    evaluated: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls(Event):
    """
    What one process of several has called of torch.distributed on one group, in this order.

    rank: the process. group: the ranks of the group, and how torch calls it ("0:8:2 4").
    timeout: the seconds after which it gives up, 0 where that is not known. source: where it was
    made. count: how many calls there were. kinds, lines: what was called, and where from.
    first, last: the places among the kinds of the first and the last calls; first_steps,
        last_steps: how many steps had been made at each.
    stride, marks: a sum of all calls so far, after every so many calls.
    """

    rank: int = 0
    group: str
    timeout: float = 0.0
    count: int = 0
    kinds: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    first: tuple[int, ...] = ()
    first_steps: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    last_steps: tuple[int, ...] = ()
    stride: int = 1
    marks: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Event):
    """
    What one process of several has given to be added up in a dtype of few bits, at one line.

    rank, group, kind: of whom, as in GroupCalls ("all_reduce of 1 bfloat16, SUM").
    places, steps: the numbers of some calls of the group, and how many steps had been made at each.
    inputs: its values; of more than 8 the largest alone. outputs: what became of them, of up to 8.
    """

    rank: int = 0
    group: str
    kind: str
    places: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    inputs: tuple[tuple[float, ...], ...] = ()
    outputs: tuple[tuple[float, ...], ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun(Event):
    """
    One process of several.

    rank, world: which one, of how many. steps: of all its optimizers. ended: how its run ended
    ("finished", "stopped", "failed"). missing: why nothing else is known of it, "" where it is.
    standing: the line and the call in which it waited for others as it ended; "" elsewhere.
    """

    rank: int
    world: int
    steps: int = 0
    ended: str = "finished"
    missing: str = ""
    standing: str = ""

    @property
    def in_pass(self) -> bool:
        """Whether it was in a pass of the model as it waited for the others."""
        return self.standing.endswith((", in forward", ", in backward"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvaluations(Event):
    """
    The evaluations of one module in one process of several, the first 256 that have a loss.

    rank: the process. module, source: which one, and where it was called. steps: how many steps had
    been made at each. losses: the mean over its samples, or of its batches.
    """

    rank: int
    module: str
    source: str = ""
    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCourse(Event):
    """
    The steps of one optimizer in one process of several: a column of `Step` in each tuple.

    rank, optimizer, source: of whom, and where its steps were made. made: how many there were.
    metrics: what a scheduler was told of it (ReduceLROnPlateau); metric: what the line calls that.
    waiting: the share of its time that a step waits for data, in the median, without the first.
    losses: of each step, in tensor parallelism.
    names ... tensor: as in ReplicaSums, whose steps are called looks here; empty without a group.
    sums: of each look one text (`write_sums`), which takes a fifth of the memory of numbers.
    """

    rank: int
    optimizer: str
    source: str = ""
    made: int = 0
    steps: tuple[int, ...] = ()
    rates: tuple[tuple[float, ...], ...] = ()
    norms: tuple[float, ...] = ()
    updates: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    fingerprints: tuple[tuple[int, ...], ...] = ()
    waiting: float = 0.0
    metrics: tuple[float, ...] = ()
    metric: str = ""
    names: tuple[str, ...] = ()
    replicas: str = ""
    sharded: bool = False
    lone: bool = False
    exchanged: int = 0
    draws: tuple[tuple[int, ...], ...] = ()
    begun: bool = False
    looks: tuple[int, ...] = ()
    sums: tuple[str, ...] = ()
    buffers: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    shares: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()
    tensor: str = ""
    losses: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRun(Event):
    """
    The first steps of one optimizer in a run of so many processes, of those with several numbers.

    samples: of each step, over all processes and micro-batches; 0 where that is not known.
    losses: the mean over processes. norms: of the gradient, in the first process.
    """

    world: int
    optimizer: str
    samples: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    source: str = ""


RANK_EVENTS = (
    WorldRun,
    ReplicaSums,
    SavedFile,
    SavedShards,
    ServedSamples,
    SplitSamples,
    GroupCalls,
    Reduction,
    RankRun,
    RankEvaluations,
    RankCourse,
)
