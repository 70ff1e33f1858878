"""The judge of validation losses."""

from dataclasses import replace
from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Evaluation, Logged, Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.evaluations import evaluation_inputs_keep_their_scale

MEASURES = "evaluation_measures_something"
LINE = "/home/me/train.py:31"
MOVED = Parameter(name="Net.fc.weight")
ODD = 0.7312346


def evaluations(*losses: float, **more) -> list[Evaluation]:
    """Write one evaluation after every fifth step."""
    row = {"module": "Net", "source": LINE, "passes": 4, "measures": True}
    return [
        Evaluation(step=5 * n, clock=50 * n + 5, loss=loss, **{**row, **more})
        for n, loss in enumerate(losses, start=1)
    ]


def logged(*values: float, name: str = "val/loss", beside: bool = True, **more) -> list:
    """Write a value after every fifth step, each after an evaluation whose loss is unknown."""
    said = [
        Logged(name=name, value=value, step=5 * n, clock=50 * n + 8, **{"source": LINE, **more})
        for n, value in enumerate(values, start=1)
    ]
    return [*said, *evaluations(*(nan for _ in values), measures=False)] if beside else said


@pytest.mark.parametrize(
    ("loss", "summary", "measured", "allowed"),
    [
        (nan, "no validation loss of `train` is finite", "nan in 3 of 3", "a finite"),
        (inf, "no validation loss of `train` is finite", "inf in 3 of 3", "a finite"),
        (0.0, "every validation loss of `train` is exactly zero", "0 in 3 of 3", "a loss above"),
        (ODD, "the validation loss of `train` never changes", "0.7312 in 3 of 3", "values that"),
    ],
)
@pytest.mark.parametrize("write", [evaluations, logged])
def test_losses_that_measure_nothing(
    write, loss, summary, measured, allowed, judged, steps
) -> None:
    """Seen in an evaluation, and said under a name of its own."""
    (finding,) = judged(MEASURES, [*steps(20), MOVED, *write(loss, loss, loss)])
    assert finding.summary.startswith(summary)
    assert finding.measured == f"{measured} evaluations"
    assert finding.allowed.startswith(allowed)
    named = "the loss of Net" if write is evaluations else "`val/loss`"
    assert finding.at == f"{named}, step 5 to step 15"
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)


def test_a_model_that_the_training_has_lost(judged, steps) -> None:
    """A loss that is not known is none that is lost."""
    run = [MOVED, *evaluations(nan, nan, nan)]
    (finding,) = judged(MEASURES, [*steps(20, losses=lambda _: (nan,)), *run])
    assert finding.why == "the training has lost the model, see loss_is_finite"
    some = steps(20, loss=lambda i: nan if i % 2 else 1.0, losses=lambda i: () if i % 2 else (1.0,))
    (finding,) = judged(MEASURES, [*some, *run])
    assert finding.why == "perhaps the mean of no batches at all"


def test_a_rate_of_zero_moves_no_loss(judged, steps) -> None:
    """A schedule that ended early is found by another judgement; the evaluation is right."""
    ended = [replace(step, rates=(0.1 if step.step < 4 else 0.0,)) for step in steps(20)]
    assert judged(MEASURES, [*ended, MOVED, *evaluations(ODD, ODD, ODD)]) == []


@pytest.mark.parametrize(
    "losses",
    [
        (0.9, 0.8, 0.7),
        (nan, nan),
        (nan, nan, 0.7),
        (0.0, 0.0),
        (0.0, 0.0, 0.1),
        (ODD, ODD),
        (ODD, ODD, 0.7),
        (0.5, 0.5, 0.5),
        (inf, inf, 1.0),
        (1e300, 1e299, 1e300),
    ],
    ids=str,
)
@pytest.mark.parametrize("write", [evaluations, logged])
def test_losses_that_may_be(write, losses: tuple[float, ...], judged, steps) -> None:
    """Two of a kind, one that differs, and what sixteen bits may have rounded."""
    assert judged(MEASURES, [*steps(20), MOVED, *write(*losses)]) == []


def test_what_is_measured_and_logged_is_said_once(judged, steps) -> None:
    """The evaluation and the log have the same fault."""
    run = [*evaluations(0.0, 0.0, 0.0), *logged(0.0, 0.0, 0.0, beside=False)]
    assert len(judged(MEASURES, [*steps(20), MOVED, *run])) == 1


@pytest.mark.parametrize("more", [{"routine": True}, {"measures": False}])
def test_passes_that_are_no_evaluation(more: dict, judged, steps) -> None:
    """What every window has, and what has no loss."""
    assert judged(MEASURES, [*steps(20), MOVED, *evaluations(nan, nan, nan, **more)]) == []


def test_a_model_that_stands_still_measures_the_same(judged, steps) -> None:
    """A teacher, a frozen reference, a module of which nothing is known."""
    same = evaluations(ODD, ODD, ODD)
    assert judged(MEASURES, [*steps(20), *same]) == []
    still = Parameter(name="Net.fc.weight", moved=False)
    assert judged(MEASURES, [*steps(20), still, Parameter(name="Other.fc.weight"), *same]) == []
    assert len(judged(MEASURES, [*steps(20), still, MOVED, *same])) == 1


def test_a_run_that_is_lost_measures_nothing(judged, steps) -> None:
    """Where no loss is finite, or all are zero, the validation is not to blame."""
    for loss in (nan, 0.0):
        run = [*steps(20, loss=loss), MOVED]
        for value in (nan, 0.0):
            assert judged(MEASURES, [*run, *evaluations(value, value, value)]) == []
    small = steps(20, loss=lambda i: 1e-4)
    assert judged(MEASURES, [*small, MOVED, *evaluations(0.0, 0.0, 0.0)]) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_loss", 1),
        ("Validation Loss", 1),
        ("eval/loss", 1),
        ("test_loss_epoch", 1),
        ("avg dev loss", 1),
        ("best_val_loss", 0),
        ("loss", 0),
        ("val/accuracy", 0),
        ("val/kl_loss", 0),
        ("train/loss", 0),
    ],
)
def test_names_of_validation_losses(name: str, expected: int, judged, steps) -> None:
    """Not the best so far, not a part of it, not the one of the training."""
    run = [*steps(20), MOVED, *logged(ODD, ODD, ODD, name=name)]
    assert len(judged(MEASURES, run)) == expected


def test_a_value_that_is_shown_again_is_no_evaluation(judged, steps) -> None:
    """A progress bar repeats the last value, or its first zero, at each step."""
    for value in (0.0, ODD):
        bar = [Logged(name="val_loss", value=value, step=n, clock=10 * n + 7) for n in range(20)]
        once = evaluations(nan, measures=False)
        assert judged(MEASURES, [*steps(20), MOVED, *bar]) == []
        assert judged(MEASURES, [*steps(20), MOVED, *bar, *once]) == []


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([], 0),
        ([("train/loss", 0.0, 0.03127, "stdout")], 1),
        ([("train/loss", 0.00005, 0.0313, "stdout")], 0),
        ([("train/loss", 0.0, 0.03127, "wandb")], 0),
        ([("lr", 0.0, 0.03127, "stdout")], 0),
        ([("train/loss", 0.00005, 0.0, "stdout")], 0),
    ],
    ids=["alone", "exact", "rounded", "elsewhere", "no loss", "zero too"],
)
def test_zeros_are_as_exact_as_other_losses(others, found: int, judged, steps) -> None:
    """0.0 may be 0.00004 that was rounded, unless the losses beside it are not."""
    small = steps(20, loss=lambda i: 0.04)
    beside = [
        Logged(name=name, value=value, rounding=rounding, channel=channel, step=3)
        for name, rounding, value, channel in others
    ]
    zeros = logged(0.0, 0.0, 0.0, rounding=0.00005)
    zeros = [replace(e, channel="stdout") if isinstance(e, Logged) else e for e in zeros]
    assert len(judged(MEASURES, [*small, MOVED, *beside, *zeros])) == found


def test_printed_values_are_rounded(judged, steps) -> None:
    """Equal digits prove something where there are five of them and the loss fell far."""
    falls = [*steps(60, loss=lambda i: 4.0 - 0.06 * i), MOVED]
    rounding = {"rounding": 0.005}
    assert len(judged(MEASURES, [*falls, *logged(*[0.73] * 5, **rounding)])) == 1
    assert judged(MEASURES, [*falls, *logged(*[0.73] * 4, **rounding)]) == []
    assert judged(MEASURES, [*falls, *logged(*[0.7] * 5, rounding=0.05)]) == []
    limit = {f"limit:{MEASURES}": 20.0}
    assert (
        len(
            judged(
                MEASURES,
                [
                    *falls,
                    *logged(*[0.7] * 5, rounding=0.05),
                ],
                **limit,
            )
        )
        == 1
    )
    flat = [*steps(60, loss=1.0), MOVED]
    assert judged(MEASURES, [*flat, *logged(*[0.73] * 5, **rounding)]) == []
    assert judged(MEASURES, [*falls, *logged(0.0, 0.0, 0.0, **rounding)]) == []
    assert len(judged(MEASURES, [*falls, *logged(0.0, 0.0, 0.0, rounding=5e-7)])) == 1


def test_edges(judged, steps) -> None:
    """No run, one step, and logs without a run say nothing."""
    for run in ([], steps(1), logged(nan, nan, nan), evaluations(nan, nan, nan)):
        assert judged(MEASURES, run) == []
    once = [Evaluation(step=5, clock=n, measures=True, loss=nan) for n in range(5)]
    assert judged(MEASURES, [*steps(20), *once]) == []


@pytest.mark.parametrize(("ended", "found"), [("finished", 1), ("stopped", 0), ("failed", 0)])
def test_zeros_of_a_loader_without_batches_are_found(ended, found, judged, steps) -> None:
    """No evaluation was made in a whole run; in a part of one it may still have been to come."""
    said = logged(0.0, 0.0, 0.0, beside=False)
    assert len(judged(MEASURES, [*steps(20), MOVED, *said], {"ended": ended})) == found
    varied = logged(0.0, 0.1, 0.0, beside=False)
    assert judged(MEASURES, [*steps(20), MOVED, *varied], {"ended": ended}) == []


@pytest.mark.parametrize(
    ("label", "measured"),
    [
        ("Net", "mean 0 and deviation 1 in each column of 80 rows"),  # as traces of before have it
        ("Net column", "mean 0 and deviation 1 in each column of 80 rows"),
        ("Net channel", "mean 0 and deviation 1 in each channel of 80 rows"),
        ("Net number", "mean 0 and deviation 1 of all numbers of 80 rows"),
        ("Net range", "from 0 to 1 in each column of 80 rows"),
    ],
)
def test_inputs_that_are_scaled_by_themselves(label: str, measured: str) -> None:
    """A note, which says by what."""
    probe = Probe(probe="own scale", measured=80.0, reference=320.0, label=label)
    (found,) = evaluation_inputs_keep_their_scale(Trace("train.py", (probe,)))
    assert (found.rank, str(found.at), found.measured) == (Rank.NOTE, "input of Net", measured)
