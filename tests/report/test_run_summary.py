"""A run in a few numbers, from traces written by hand."""

import json
import math

from trainguard.events.loop import Evaluation, Step
from trainguard.events.parameter import Parameter
from trainguard.events.trace import Trace
from trainguard.report.run_summary import as_plain, as_rows, headline, size_text, summarize_run


def made(*events, **conditions):
    """Digest a trace."""
    return summarize_run(Trace("mlp", events, conditions))


def steps(count: int, optimizer: str = "SGD", **columns) -> list[Step]:
    """Return steps of one optimizer whose loss falls by one each."""
    return [
        Step(
            **{
                "step": step,
                "optimizer": optimizer,
                "loss": float(count - step),
                "losses": (float(count - step),),
                "rates": (0.1,),
                "seconds": 0.5,
                **columns,
            }
        )
        for step in range(count)
    ]


def test_a_run() -> None:
    """Steps, speed, the share of waiting, and both ends of loss and rate."""
    told = made(*steps(4, wait=0.2, norm=3.0, norm_before=3.0), seconds=9.0, ended="stopped")
    assert (told.steps, told.optimizers) == (4, {"SGD": 4})
    assert (told.seconds, told.pace, told.ended) == (9.0, 0.5, "stopped")
    assert math.isclose(told.wait, 0.4)
    assert (told.loss, told.norm) == ((4.0, 1.0), 3.0)
    assert told.rates == {"SGD": ((0.1,), (0.1,))}
    assert headline(told, "mlp") == (
        "mlp: 4 steps of SGD in 9.0 s, 500 ms each, 40% of it waiting for data (stopped)"
    )
    assert as_rows(told) == [
        ("loss", "4 -> 1 from the first to the last step"),
        ("gradient", "norm 3 in the median"),
        ("rate", "0.1"),
    ]


def test_the_first_window_is_left_out() -> None:
    """Imports and the making of the model are in it; they are no part of a step."""
    rest = steps(5)[1:]
    slow = Step(step=0, optimizer="SGD", seconds=60.0)
    assert made(slow, *rest).pace == 0.5
    assert made(slow).pace == 60.0


def test_steps_that_stand_for_many() -> None:
    """In a run that was thinned out, a step counts for as many as it stands for."""
    told = made(*steps(3, span=100))
    assert (told.steps, told.optimizers["SGD"], told.pace) == (300, 300, 0.5)


def test_two_optimizers() -> None:
    """Their windows overlap: two of them in one round take half of it each."""
    told = made(*steps(3, "Adam"), *steps(3, "Adam#2", rates=(0.1, 0.2)))
    assert (told.steps, told.pace) == (6, 0.25)
    assert headline(told, "gan").startswith("gan: 6 steps of Adam 3, Adam#2 3 in ")
    assert as_rows(told)[1:] == [("rate", "0.1 of Adam"), ("rate", "0.1, 0.2 of Adam#2")]


def test_clipping_shows() -> None:
    """The norm is that before clipping, and that after it where the two differ."""
    told = made(*steps(2, norm=1.0, norm_before=50.0))
    assert as_rows(told)[1] == ("gradient", "norm 50 in the median, 1 after clipping")


def test_evaluations() -> None:
    """Those that are part of every step are none; one without a loss has none to tell."""
    events = [
        Evaluation(step=1, loss=3.0, measures=True),
        Evaluation(step=2, loss=math.nan),
        Evaluation(step=2, loss=9.0, measures=True, routine=True),
        Evaluation(step=3, loss=2.0, measures=True),
    ]
    assert as_rows(made(*steps(2), *events))[-1] == ("evaluated", "3 times, loss 3 -> 2")


def test_losses_of_elements_and_modules_that_serve() -> None:
    """What is made of a loss of elements is not known; a target network is not evaluated."""
    events = [
        Evaluation(step=1, module="Net", loss=3.0, measures=True, reduction="none"),
        Evaluation(step=2, module="Net", loss=2.0, measures=True, reduction="mean/none"),
        Evaluation(step=2, module="Target", loss=9.0, measures=True),
        Evaluation(step=3, module="Average", loss=math.nan),
        Parameter(name="Net.weight"),
        Parameter(name="Net.bias", moved=False),
        Parameter(name="Target.weight", moved=False),
        Parameter(name="Average.weight", moved=False, copy=True),
    ]
    assert as_rows(made(*steps(2), *events))[-1] == ("evaluated", "3 times")


def test_what_is_unknown_is_left_out() -> None:
    """A run of which nothing is known has no rows, and says so in JSON by null."""
    told = made(Step(step=0))
    assert as_rows(told) == []
    plain = json.loads(json.dumps(as_plain(told), allow_nan=False))
    assert plain["loss"] is plain["gradient_norm"] is plain["waiting_for_data"] is None
    assert headline(told, "mlp") == "mlp: 1 step of SGD in 0.0 s"


def test_a_loss_that_became_nan() -> None:
    """It is told as it is, and null where JSON has no word for it."""
    last = Step(step=2, optimizer="SGD", loss=math.nan, losses=(math.nan,))
    told = made(*steps(2), last)
    assert as_rows(told)[0] == ("loss", "2 -> nan from the first to the last step")
    assert as_plain(told)["loss"] == {"first": 2.0, "last": None}


def test_losses_of_two_optimizers_are_told_apart() -> None:
    """The first loss of the one and the last of the other say nothing of either."""
    told = made(*steps(4, "Adam"), *steps(9, "Adam#2"))
    assert [row for row in as_rows(told) if row[0] == "loss"] == [
        ("loss", "4 -> 1 from the first to the last step of Adam"),
        ("loss", "9 -> 1 from the first to the last step of Adam#2"),
    ]
    assert as_plain(told)["losses"]["Adam"] == {"first": 4.0, "last": 1.0}
    assert as_plain(told)["loss"] == {"first": 9.0, "last": 1.0}


def test_a_loss_that_two_optimizers_step_on_is_told_once() -> None:
    """It is one number."""
    told = made(*steps(4, "Adam"), *steps(4, "Adam#2"))
    assert as_rows(told)[:1] == [("loss", "4 -> 1 from the first to the last step")]
    assert as_rows(told)[1][0] != "loss"


def test_sums_of_fewer_samples_are_left_out() -> None:
    """The last batch of an epoch is smaller: its sum is no smaller loss."""
    whole = steps(4, batch=(32,))
    last = Step(step=4, optimizer="SGD", loss=0.1, losses=(0.1,), batch=(3,))
    mean = Step(step=4, optimizer="SGD", loss=0.1, losses=(0.1,), batch=(3,), weights=(1.0,))
    assert made(*whole, last).loss == (4.0, 1.0)
    assert made(*whole, mean).loss == (4.0, 0.1)
    assert made(*steps(1, batch=(64,)), *steps(3, batch=(32,))[:2]).loss == (1.0, 2.0)


def test_no_step() -> None:
    """A trace without a step adds up to nothing."""
    assert (made().steps, made().optimizers, made().loss) == (0, {}, None)
    json.dumps(as_plain(made()), allow_nan=False)


def test_sizes() -> None:
    """A size is written in the largest unit that fits."""
    assert [size_text(n) for n in (0, 1023, 1024, 3 * 2**20, 5 * 2**50)] == [
        *("0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5120.0 TiB"),
    ]
