"""The judges of what a model has learned, against a prediction that knows no input."""

from dataclasses import replace

import pytest

from trainguard.core.finding import Rank
from trainguard.events.fit import BaselineFit, Skill
from trainguard.events.loop import Evaluation
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe

BEATS = "loss_beats_constant_prediction"
FOLLOWS = "outputs_follow_inputs"
LINE = "/home/me/train.py:9"


def fit(loss: float = 2.3, constant: float = 2.3, falls: float = 0.0, **more) -> BaselineFit:
    """Write the losses of a place in 64 stretches, beside those of the constant."""
    losses = tuple(loss * (1 + falls * (63 - index) / 63) for index in range(64))
    row = {"calls": 128, "only": 1.0, "losses": losses, "constants": (constant,) * 64}
    known = {"examples": 256, "inputs": 256, "learnable": 0.9, "source": LINE}
    return BaselineFit(**{"function": "cross_entropy", **row, **known, **more})


def test_a_model_that_predicts_the_mean(judged) -> None:
    """The loss is said beside that of the constant, and what is known of the data."""
    (finding,) = judged(BEATS, [fit()])
    assert finding.summary == (
        "the model of `train` ends no better than a constant that ignores the input"
    )
    assert finding.at == "cross_entropy, the last quarter of 128 calls"
    assert (finding.measured, finding.source) == ("loss 2.3", LINE)
    assert "90%" in finding.why


def test_pairs_that_teach_in_an_evaluation_alone(judged) -> None:
    """Both shares are said, and the lines that draw an order."""
    lines = [Origin(name="order of rows", source=f"/home/me/train.py:{line}") for line in (3, 4)]
    (finding,) = judged(BEATS, [fit(learnable=-0.1, evaluated=0.74), *lines])
    assert finding.rank is Rank.BROKEN
    assert "explains 74% of targets of the evaluation" in finding.why
    assert "and 0% of those of the training" in finding.why
    assert finding.why.endswith("(train.py:3, train.py:4)")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["broken"]),
        ({"learnable": 0.1}, ["note"]),
        ({"learnable": float("nan")}, ["note"]),
        ({"learnable": 0.0, "evaluated": 0.9}, ["broken"]),
        ({"learnable": 0.0, "evaluated": 0.9, "loss": 2.2}, []),
        ({"learnable": 0.0, "evaluated": 0.9, "only": 0.5}, []),
        ({"learnable": 0.0, "evaluated": 0.2}, ["note"]),
        ({"learnable": 0.0, "evaluated": -0.2}, ["note"]),
        ({"loss": 2.2}, []),
        ({"loss": 9.0, "learnable": 0.1}, ["broken"]),
        ({"loss": 9.0, "falls": 3.0}, []),
        ({"falls": 0.1}, []),
        ({"only": 0.5}, []),
        ({"only": 0.0, "reconstructs": True}, ["note"]),
        ({"calls": 40}, []),
        ({"calls": 64}, ["broken"]),
        ({"calls": 64, "falls": 0.02}, ["note"]),
        ({"loss": 90.0, "falls": 3.0}, ["broken"]),
        ({"loss": 90.0, "falls": 3.0, "function": "mse_loss"}, []),
        ({"constant": 0.01, "loss": 0.1}, []),
        ({"function": "mse_loss", "constant": 0.01, "loss": 0.01}, ["broken"]),
        ({"function": "mse_loss", "constant": 0.0, "loss": 0.01}, []),
        ({"constant": float("nan")}, []),
        ({"losses": (), "constants": ()}, []),
    ],
)
def test_constant_predictions(more: dict, expected: list[str], ranks) -> None:
    """What has learned, still falls, is one term of several or short is left alone."""
    assert ranks(BEATS, [fit(**more)]) == expected


@pytest.mark.parametrize(
    ("made", "later", "end", "expected"),
    [(60, 1000, 1.5, []), (60, 0, 1.5, ["broken"]), (60, 1000, 4.0, ["broken"]), (20, 1000, 4, [])],
    ids=["learns", "two optimizers of one training", "does not learn", "has only begun"],
)
def test_a_training_after_another(made, later, end, expected, ranks, steps) -> None:
    """Of several models that are trained at one line, the last is judged by its own calls."""
    first = steps(60, optimizer="SGD")
    second = steps(made, optimizer="Adam", clock=lambda step: 10 * step + 15 + later)
    losses = (1.0,) * 32 + (4.0,) * 24 + (end,) * 8
    assert ranks(BEATS, [*first, *second, fit(losses=losses)]) == expected


def test_a_reconstruction_that_is_drowned(judged) -> None:
    """The other term is named as the cause, and not what the inputs say of themselves."""
    (finding,) = judged(BEATS, [fit(only=0.0, reconstructs=True)])
    assert "another term drowns it" in finding.why


@pytest.mark.parametrize(("third", "found"), [(1.07, 0), (1.03, 1)])
def test_a_reconstruction_that_nears_the_constant(third: float, found: int, judged) -> None:
    """A fall that goes on as before is one, and one that fades away is not."""
    losses = tuple(2.3 * ratio for ratio in (1.6, 1.12, third, 1.02))
    drowned = fit(only=0.0, reconstructs=True, losses=losses, constants=(2.3,) * 4)
    assert len(judged(BEATS, [drowned])) == found
    assert judged(BEATS, [replace(drowned, calls=95)]) == []  # such a run has only begun


def test_rollouts_and_rising_rates_are_left_alone(judged, steps) -> None:
    """The targets of rollouts move, and a warmup that is not over has not begun to learn."""
    assert judged(BEATS, [Evaluation(step=0, routine=True), fit()]) == []
    assert judged(BEATS, [*steps(60, rates=lambda i: (1e-5 * (i + 1),)), fit()]) == []
    assert len(judged(BEATS, [*steps(60, rates=lambda i: (1e-5 * (90 - i),)), fit()])) == 1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"alike": 40}, "the outputs of `train` are the same for every sample of a batch"),
        ({"blank": 40}, "the inputs of `train` are the same for every sample of a batch"),
        ({"alike": 20}, None),
        ({"alike": 40, "calls": 400}, None),
    ],
)
def test_samples_that_are_told_apart(more: dict, expected: str | None, judged) -> None:
    """One answer for all is found where it lasts to the end of the run."""
    found = [finding.summary for finding in judged(FOLLOWS, [fit(**more)])]
    assert found == ([expected] if expected else [])


def test_why_samples_are_not_told_apart(judged) -> None:
    """Of inputs the line of their loader, of outputs the function that is at its limit."""
    loader = Origin(name="loader", source="/a/net.py:3")
    (finding,) = judged(FOLLOWS, [loader, fit(blank=40)])
    assert finding.why.endswith("before the loader (net.py:3) is made, or as it serves them")
    limit = Probe(probe="saturated", measured=9, label="a.weight softmax", source="/a/net.py:7")
    (finding,) = judged(FOLLOWS, [limit, fit(alike=40)])
    assert finding.why.startswith("softmax() is at its limit for every sample (net.py:7)")


@pytest.mark.parametrize(("quiet", "expected"), [(0.1, []), (1.0, ["broken"])])
def test_a_loss_of_outliers(quiet: float, expected: list, ranks) -> None:
    """Where few targets lie far off, the other stretches tell whether a model has learned."""
    pairs = [(642.0, 643.0) if stretch % 4 else (quiet, 1.0) for stretch in range(64)]
    losses, constants = zip(*pairs, strict=True)
    assert ranks(BEATS, [fit(losses=losses, constants=constants)]) == expected


def skill(right: int, **more) -> Skill:
    """Write the last evaluation of a run of sixty steps, with four classes."""
    return Skill(
        **{"step": 60, "rows": 200, "right": right, "commonest": 50, "source": LINE, **more}
    )


@pytest.mark.parametrize(
    ("others", "more", "expected"),
    [
        ([skill(40)], {"loss": 0.5}, ["broken"]),
        ([skill(60)], {"loss": 0.5}, ["broken"]),
        ([skill(90)], {"loss": 0.5}, []),
        ([skill(40), skill(90)], {"loss": 0.5}, []),
        ([skill(40, recall=0.2, spread=0.03)], {"loss": 0.5}, []),
        ([skill(40, recall=0.1, spread=0.03)], {"loss": 0.5}, ["broken"]),
        ([skill(40)], {"loss": 2.0}, []),
        ([skill(40)], {"loss": 0.5, "learnable": 0.1}, []),
        ([skill(40)], {"loss": 0.5, "only": 0.5}, []),
        ([skill(10, rows=50)], {"loss": 0.5}, []),
        ([skill(8, rarest=48)], {"loss": 0.5, "learnable": 0.0}, ["broken"]),
        ([skill(8, rarest=10)], {"loss": 0.5, "learnable": 0.0}, []),
        ([skill(8, rarest=48), skill(90)], {"loss": 0.5, "learnable": 0.0}, []),
        ([skill(8, rarest=48)], {"loss": 2.0, "learnable": 0.0}, []),
        ([skill(40, step=10)], {"loss": 0.5}, []),
        ([], {"loss": 0.5}, []),
    ],
)
def test_evaluations_at_chance(others: list, more: dict, expected: list, ranks, steps) -> None:
    """Where the model has learned what can be generalised, some evaluation must show it."""
    assert ranks("evaluation_beats_chance", [*steps(60), *others, fit(**more)]) == expected


@pytest.mark.parametrize(
    ("looks", "last", "others", "expected"),
    [
        (9, 40, ["SGD", "Adam"], ["broken"]),
        (9, 40, ["SGD"], ["note"]),
        (7, 40, ["SGD"], []),
        (9, 8, ["SGD"], []),
    ],
    ids=["several optimizers", "one", "few looks", "a beginning"],
)
def test_an_output_with_one_target(looks, last, others, expected, ranks, steps) -> None:
    """Where a model is trained against another one, all of its targets are hardly one."""
    run = [step for name in others for step in steps(60, optimizer=name)]
    probe = Probe(probe="one target", measured=looks, reference=2, step=last, label="1")
    assert ranks("targets_vary", [*run, probe]) == expected


def test_targets_that_are_the_token_that_hides_them(judged) -> None:
    """How many, and which token it is."""
    rest = {"measured": 1893, "reference": 2395, "label": "token 2", "source": "pretrain.py:88"}
    (finding,) = judged("targets_vary", [Probe(probe="covered", step=16, **rest)])
    assert finding.rank is Rank.BROKEN
    assert finding.at == "token 2, which is in no place that does not count"
    assert finding.measured.startswith("1893 of 2395 targets are that token")
    assert finding.source == "pretrain.py:88"


@pytest.mark.parametrize(("made", "expected"), [(45, []), (20, ["broken"])])
def test_an_evaluation_of_whichever_model(made: int, expected: list, ranks, steps) -> None:
    """Where another optimizer begins late, as that of a search's next trial, it may be new."""
    run = steps(60)
    trials = [*run[:made], *(replace(one, optimizer="Adam#2") for one in run[made:])]
    assert ranks("evaluation_beats_chance", [*trials, skill(40), fit(loss=0.5)]) == expected
