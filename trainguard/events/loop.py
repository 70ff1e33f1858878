"""
The events of a training run: what a recorder saw in each step, and what it added up over the run.

A `source` is where in the user's code something was done: `train.py:41`, empty where unknown.
A `clock` counts the events of a run, so that events of different kinds can be put in order.
"""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event
from trainguard.events.fit import FITS
from trainguard.events.origin import Origin
from trainguard.events.parameter import Parameter as Parameter  # noqa: PLC0414 one of them
from trainguard.events.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    """
    One step of one optimizer. Its *window* is all that happened since this optimizer's last step.

    step: how many steps this optimizer had made before.
    optimizer: its name ("AdamW", "AdamW#2", "by hand" where parameters moved without one).
    clock, source: when, and from where, the step was made.
    span: how many steps this one stands for, in a long run that was thinned out.
    skipped: whether a gradient scaler left the step out.

    loss: the sum of what was handed to backward in the window, unscaled; nan where unknown.
    losses: those values one by one (at most 64), unscaled; one for each micro-batch.
    weights: for each of them that is a multiple of one mean-reduced loss function, that multiple.
    scale: the gradient scaler's factor that was in force; 1 without a scaler.
    order: what was done in the window, in order, repetitions dropped. Words: "zero", "schedule",
        "forward", "backward", "unscale", "clip", "evaluate".

    received, held: parameters of the optimizer that got a gradient; all its trainable ones.
    norm: the global norm of the gradients the step was made with, unscaled; nan where unknown.
    norm_before: the same before any clipping in this window.
    layers: (parameter, norm of its gradient, its size) of weights with two or more
        dimensions, in model order; on surveyed steps only. `size` is its number of elements.
    leftover: norm of the gradient that was already there at the window's first backward though
        the last step had used it; leftover_name: a parameter that it was found in.
    thrown: passes backward in the window whose gradients were cleared with no use made of them;
        thrown_source: where they were cleared.
    clip: what clipping did, "" where there was none: "taken" (it saw the step's gradients),
        "empty" (there was no gradient yet, or no more), "no parameters" (it was given none),
        "scaled" (gradients were still scaled), "partial" (it saw some of them only),
        "undone" (what was clipped is not what the step was made with).
    clip_limit: the norm (or value) that was allowed; clip_source: where it was called.
    clip_share: the share of the squared gradient norm that the clipping saw, 0 to 1.
    unclipped: a parameter with gradient that clipping did not see, where there is one.

    rates: the learning rate of each parameter group in force in this step.
    reported: what the scheduler of this optimizer last said (`get_last_lr`), where there is one.
    update, weight: norms of the update and of the parameters, on surveyed steps; nan elsewhere.
    culprit: where the first value that is not finite was: "output of `Net.fc1` ...".

    trained: passes forward in the window that learned (backward reached them).
    training: whether the outermost module of those was in training mode.
    asleep: modules with dropout or batch statistics that were in evaluation mode in them.
    batch: the number of samples of each such pass; fingerprints: of the inputs of each.
    wait, seconds: waiting for data, and all time in the window.
    memory: bytes in use (CUDA: allocated; otherwise the peak resident size of the process).
    """

    step: int
    optimizer: str = "SGD"
    clock: int = 0
    source: str = ""
    span: int = 1
    skipped: bool = False
    loss: float = nan
    losses: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    scale: float = 1.0
    order: tuple[str, ...] = ()
    received: int = 0
    held: int = 0
    norm: float = nan
    norm_before: float = nan
    layers: tuple[tuple[str, float, int], ...] = ()
    leftover: float = 0.0
    leftover_name: str = ""
    thrown: int = 0
    thrown_source: str = ""
    clip: str = ""
    clip_limit: float = nan
    clip_source: str = ""
    clip_share: float = 1.0
    unclipped: str = ""
    rates: tuple[float, ...] = ()
    reported: tuple[float, ...] = ()
    update: float = nan
    weight: float = nan
    culprit: str = ""
    trained: int = 0
    training: bool = True
    asleep: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    fingerprints: tuple[int, ...] = ()
    wait: float = 0.0
    seconds: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Event):
    """
    Passes forward in a row from which nothing was learned, with their losses.

    step: how many optimizer steps (of all optimizers) had been made.
    module, source: the outermost module, and where it was called first.
    passes: how many; repeats: how many of them had the input of the one before, as samples of a
        model with dropout have. losses: the mean of what loss functions returned in it; nan where
        none ran.
    count, weighted, last: how many values those were, their mean over samples (nan where unknown),
        and the last of them; samples, reduction: of all of them ("mean", "sum", "mean/sum").
    mixed: the mean over passes of what its loss functions returned, each multiplied as in the loss
        that is learned, of which the largest factor, mixed_by, counts as one; nan where the two are
        not called alike. mixed_weighted: its mean over mixed_samples.
    measures: whether a loss function was called on what the module returned.
    training: whether the module was in training mode.
    awake: modules in it with dropout or batch statistics that were in training mode.
    gradients: whether graphs were built of what needs them.
    idle: whether there was such a graph, and no backward reached it.
    touched: buffers, parameters or gradients that the passes changed.
    routine: whether every window of the run has such passes (a rollout, a teacher, a generator).
    """

    step: int
    clock: int = 0
    module: str = ""
    source: str = ""
    passes: int = 1
    repeats: int = 0
    loss: float = nan
    count: int = 0
    weighted: float = nan
    last: float = nan
    samples: int = 0
    reduction: str = ""
    mixed: float = nan
    mixed_weighted: float = nan
    mixed_by: float = 1.0
    mixed_samples: int = 0
    measures: bool = False
    training: bool = False
    awake: tuple[str, ...] = ()
    gradients: bool = False
    idle: bool = False
    touched: tuple[str, ...] = ()
    routine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(Event):
    """
    A number that the script said: on stdout, or to a logger.

    name, value: as they were said ("train/grad_norm", 0.0).
    rounding: half a unit of the last digit that was written; 0 where the number is exact.
    step: how many optimizer steps (of all optimizers) had been made.
    channel: "stdout", "tensorboard", "wandb", "mlflow", "lightning", "transformers".
    """

    name: str
    value: float
    step: int
    rounding: float = 0.0
    clock: int = 0
    channel: str = "stdout"
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Event):
    """
    A line of the user's code that read gradients: how often they were there, how often cleared.

    "Cleared" means that the last step had used them and they were since set to None or zero.
    called: the line of the user's code that called the function of this line first, if any did.
    """

    source: str
    code: str = ""
    empty: int = 0
    full: int = 0
    called: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Event):
    """
    All calls of one loss function from one place of the user's code.

    function: "cross_entropy"; reduction: "mean", "sum", "none"; input, target: their first shapes.
    broadcasts: calls whose input and target were expanded to a larger shape.
    producer: what made the input ("SoftmaxBackward0"), as autograd names it.
    distributions: calls whose input rows all lay in 0..1 and summed to one.
    positive, heavy, crossed: calls that take log-probabilities and got a value above zero, rows
        that sum to more than one, or another axis along which they, or soft targets, sum to one.
    blanks: calls of ctc_loss, of those looked at, whose targets have the blank among them.
    several: calls of cross_entropy, of those looked at, whose soft targets are zeros and ones, of
        which most rows have several.
    negative, nonfinite: calls with such a result. weighted: whether weights were given.
    range: the smallest and the largest target, of probabilities and signs.
    shares: at the probed steps, the norm of this term's part of the gradient over that of the
        largest term; empty where it was not probed.
    evaluation: whether the calls were made without gradients.
    beyond: the mean share of targets that what made the input cannot return, as a negative one
        under a ReLU. viewed: the shape that the input had before it was viewed in its own.
    reach, frames: of ctc_loss, the largest share of the steps in time of an input that a length
        has, and how many different numbers of steps in time inputs have. short: the share of its
        samples with fewer steps in time than labels. padded, lengths: of the first 64 calls those
        that read all steps of each sample, though a variable of this name has their lengths.
    logarithm: whether the input is taken for the logarithm of a rate.
    activation: the line of the model that has what made the input, where only one does.
    """

    function: str
    source: str = ""
    calls: int = 0
    reduction: str = "mean"
    input: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    broadcasts: int = 0
    producer: str = ""
    distributions: int = 0
    positive: int = 0
    heavy: int = 0
    crossed: int = 0
    blanks: int = 0
    several: int = 0
    negative: int = 0
    nonfinite: int = 0
    range: tuple[float, ...] = ()
    weighted: bool = False
    shares: tuple[float, ...] = ()
    evaluation: bool = False
    beyond: float = 0.0
    viewed: tuple[int, ...] = ()
    reach: float = 0.0
    frames: int = 0
    short: float = 0.0
    padded: int = 0
    lengths: str = ""
    logarithm: bool = False
    activation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(Event):
    """
    A copy of a trained module, seen at one step: how it follows, as an average should.

    name: of the copy; follows: of the module it copies.
    decay: the share of itself that it kept, estimated from its last move; nan where it or the
        module did not move.
    residual: what of its move that decay does not explain, as a share of the move.
    moved: whether it moved since the last look; student_moved: whether its module did.
    shared: whether it shares memory with its module, so that it is no copy.
    named: whether its name or class calls it an average ("ema", "average", "teacher").
    stayed: in 16 bits, the share of its elements that did not move, of those far from its module's
        for that precision; nan where these are few.
    """

    name: str
    step: int
    follows: str = ""
    decay: float = nan
    residual: float = 0.0
    moved: bool = True
    student_moved: bool = True
    shared: bool = False
    named: bool = False
    stayed: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrowth(Event):
    """
    How much of one kind of thing there was, looked at ever more rarely in the course of a run.

    kind: "graphs" (of outputs that were made two optimizer steps ago or earlier), "stale"
        (of how many different steps those are), "hooks" (most on one module or parameter),
        "handlers" (most on one logger), "optimizers" (made anew for the same parameters, with the
        state of the last one lost), "history" (nodes behind a loss).
    steps, counts: at which steps of all optimizers was looked, and what there was.
    among: for graphs, how many there would be if none had been let go; for optimizers, how many
        steps each of them made; for history, whether nodes of the look before are among them.
    name, source: of what grew, and of the code that made it.
    """

    kind: str
    steps: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    among: tuple[int, ...] = ()
    name: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler(Event):
    """
    One learning-rate scheduler over the whole run.

    optimizer: the optimizer it drives, as Steps name it; "" where that one never stepped.
    calls: how often it was advanced; early: how often before its optimizer's first step.
    conditional: whether the file that made it has a line that advances a scheduler, and the rate
        that it began with was the full one, so that it may have waited for something.
    inert: whether that file has no line at all that could advance one.
    length, setting: after how many advances its schedule is over, 0 where that is unknown or where
        another scheduler has it for a part, and the setting that says so ("T_max").
    base: the rates that it multiplies with what a function returns (LambdaLR); empty elsewhere.
    settings: a checksum of what it was made with; 0 where that is a function, or it is a part.
    turns: the first and the last of its advances, among those of all schedulers from 1 on.
    advanced: the line that made the first of its advances.
    mode: "min" or "max" where it is told a metric (ReduceLROnPlateau); expression: what the line
        that advances it tells it ("val_loss"), as far as that is a plain name.
    planned: numbers of epochs in the variables of the code that made it. place: how often it had
        been advanced at its last advance, in the runs before this one too.
    metrics: what it was told, each with the clock; the first 256.
    """

    name: str
    optimizer: str = ""
    calls: int = 0
    early: int = 0
    conditional: bool = False
    inert: bool = False
    length: int = 0
    setting: str = ""
    base: tuple[float, ...] = ()
    settings: int = 0
    turns: tuple[int, int] = (0, 0)
    advanced: str = ""
    mode: str = ""
    expression: str = ""
    planned: tuple[int, ...] = ()
    place: int = 0
    metrics: tuple[tuple[int, float], ...] = ()
    source: str = ""


LOOP_EVENTS = (
    *(Step, Evaluation, Logged, Parameter, Read, Term, Scheduler, Average, Probe),
    *FITS,
    *(RunGrowth, Origin),
)
