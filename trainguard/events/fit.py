"""What a model has learned, beside what a constant prediction would have."""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFit(Event):
    """
    The loss at one place of the user's code beside that of a prediction that knows no input.

    calls: with a gradient, that were compared. only: the share of all backward passes whose loss
        was a multiple of one of them, and of nothing else.
    losses, constants: the mean loss of the model, and that of always predicting the average of
        the targets seen before, in stretches of the run that are equally long but for the last.
    examples, inputs: pairs of an input and its target that were remembered, and how many
        different inputs they have.
    learnable: the share of the variance of held-out targets that a kernel regression on the other
        examples explains; nan where it was not tried.
    evaluated: the same of pairs of evaluations, where learnable is little; else nan. farther: how
        far the inputs are from the nearest of those, over how far these are from each other.
    reconstructs: whether the targets are the inputs themselves.
    deviation: of the inputs from one example to another, the root mean square over their numbers;
        nan where they are no numbers.
    alike: calls in a row at the end of the run in which all samples got the same output, though
        neither their inputs nor their targets were the same. blank: the same of their inputs.
    weights, counts: the weight that the loss gives to each class, and how often each came; of a
        pos_weight, one and that, for negatives and positives; of one for each of several tags, the
        odds of each, times the rows. Empty where there are none, or many.
    classes: how many there are, where a parameter of the model has as many rows or columns, so that
        they are classes and no places in a batch; else 0. single: the class of all targets; -1
        where there are several.
    """

    function: str
    source: str = ""
    calls: int = 0
    only: float = 0.0
    losses: tuple[float, ...] = ()
    constants: tuple[float, ...] = ()
    examples: int = 0
    inputs: int = 0
    learnable: float = nan
    evaluated: float = nan
    farther: float = nan
    reconstructs: bool = False
    deviation: float = nan
    alike: int = 0
    blank: int = 0
    weights: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    classes: int = 0
    single: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill(Event):
    """
    How right a model was about classes in the latest evaluation at one place.

    step: how many optimizer steps had been made. rows: how many samples were evaluated.
    right: for how many the highest score was that of their class; commonest: how many had the
        commonest class, rarest: the rarest of all classes that there are scores for.
    recall: how far the mean recall of the classes that came is above that of a constant;
        spread: its standard deviation where each class is named by chance.
    evaluations: how many there were at that place.
    """

    step: int
    source: str = ""
    rows: int = 0
    right: int = 0
    commonest: int = 0
    rarest: int = 0
    recall: float = 0.0
    spread: float = 0.0
    evaluations: int = 0


Way = tuple[str, float, float, float]  # a name, what is right by it, of how many, mean of the calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Event):
    """
    How many predictions were right in one step of training, or in one evaluation, at one place.

    clock: of the last call. step: how many optimizer steps had been made. calls: of the loss.
    evaluation: whether they were made without gradients. classes: how many there are.
    sole: whether each prediction is about one sample of the pass.
    ways: how many are right by each way of counting: "right" (the highest score; a probability
        above one half), "whole" (sequences without an error), "all", "padded" and "filled" (what
        the loss ignores counts, as wrong, as it comes or as right), and known mistakes: "axis" (the
        highest score along another axis), "pairs" (each prediction against each target), "first"
        and "second" (one class always predicted), "half" (a logit above one half), "rounded" (a
        logit that was rounded), "final" (the last of several batches alone).
    commonest: at least so many targets were of the commonest class. renamed: so many were right in
        an evaluation if each class were called what it is mostly named as, no two alike; nan where
        that is not known.
    """

    step: int
    source: str = ""
    clock: int = 0
    calls: int = 1
    evaluation: bool = False
    classes: int = 2
    sole: bool = False
    ways: tuple[Way, ...] = ()
    commonest: float = nan
    renamed: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Event):
    """
    What an evaluation scored at one place, by metrics that are no means over samples.

    step: how many optimizer steps had been made. clock: of the last of its batches.
    values: a metric ("rmse"), how it was computed ("true": by one of its conventions, or a known
        mistake: "batches", "decisions", "exchanged", "squared"), and its value.
    """

    step: int
    source: str = ""
    clock: int = 0
    batches: int = 0
    values: tuple[tuple[str, str, float], ...] = ()


FITS = (BaselineFit, Skill, Score, Metrics)
