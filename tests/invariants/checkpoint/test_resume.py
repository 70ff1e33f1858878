"""What is said of runs that go on, in other steps or from another place."""

import pytest

from tests.invariants.checkpoint.resumed import WHOLE, departs, judged, lost, resumption

RUN, NEWEST = "resume_continues_the_run", "resume_takes_the_newest"


@pytest.mark.parametrize("name", [RUN, NEWEST, "checkpoint_is_complete", "loading_is_safe"])
def test_a_run_that_goes_on_is_passed(name: str) -> None:
    """All its parts are there, and all its steps are the same."""
    assert judged(name, *WHOLE) == []


def test_a_generator_that_nothing_draws_from_is_passed() -> None:
    """What is not restored and makes no difference is nobody's affair."""
    assert judged(RUN, *WHOLE, lost("generator", "numpy")) == []


def test_other_losses_are_found_with_their_generator() -> None:
    """The message names the first step, both losses, and what was not restored."""
    (finding,) = judged(
        RUN, resumption(), lost("generator", "torch"), departs("loss", measured=0.5, reference=0.25)
    )
    assert finding.summary == "`train` has other losses after a resume"
    assert finding.at == "step 6, the first step after the resume"
    assert (finding.measured, finding.allowed) == ("0.5", "0.25")
    assert finding.why == "the state of the generator of torch is not restored"


@pytest.mark.parametrize(
    ("seen", "told", "cause"),
    [(0.0, "the batch of step 0", "epoch is begun again"), (-1.0, "a batch of no step", "anew")],
)
def test_other_batches_are_found_before_their_losses(seen: float, told: str, cause: str) -> None:
    """The batch that came instead is named where the other run had it."""
    batch = departs("batch", measured=seen, reference=6.0)
    (finding,) = judged(RUN, resumption(), batch, departs("loss", measured=1, reference=2))
    assert (finding.measured, finding.allowed) == (told, "the batch of step 6")
    assert cause in finding.why


def test_losses_that_differ_before_batches_are_what_is_told() -> None:
    """A batch that differs later may only follow from it."""
    later = departs("batch", 3, measured=-1.0, reference=9.0)
    (finding,) = judged(RUN, resumption(), later, departs("loss", 1, measured=1, reference=2))
    assert finding.summary == "`train` has other losses after a resume"


def test_what_follows_from_a_lost_part_is_not_told_again() -> None:
    """Losses and later batches differ where the optimizer does."""
    later = departs("batch", 3, measured=-1.0, reference=9.0)
    loss = departs("loss", 1, measured=1, reference=2)
    assert judged(RUN, resumption(), lost("optimizer"), later, loss) == []


def test_the_first_batch_does_not_depend_on_the_optimizer() -> None:
    """So it is told beside it, but not where the weights that make the inputs are lost."""
    first = departs("batch", measured=0.0, reference=6.0)
    assert len(judged(RUN, resumption(), lost("optimizer"), first)) == 1
    assert judged(RUN, resumption(began=-1), lost("parameters"), first) == []


def test_parameters_that_differ_after_equal_losses_are_found() -> None:
    """A setting of the optimizer shows in the update alone."""
    (finding,) = judged(RUN, resumption(), departs("parameters", 2))
    assert finding.at == "step 8, the third step after the resume"
    assert "setting of the optimizer" in finding.why


@pytest.mark.parametrize(("made", "ended", "found"), [(12, True, 1), (4, True, 1), (12, False, 0)])
def test_another_number_of_steps_is_found(made: int, ended: bool, found: int) -> None:
    """Only a run that ends by itself has a number of steps of its own."""
    assert len(judged(RUN, resumption(made=made, ended=ended))) == found


def test_a_run_that_raises_is_found() -> None:
    """What it raised is shown, and where; a hint where it was about safety."""
    error = "UnpicklingError: Weights only load failed. ... weights_only ..."
    (finding,) = judged(RUN, resumption(error=error, made=0, source="train.py:9"))
    assert finding.summary == "`train` cannot be resumed"
    assert finding.source == "train.py:9"
    assert "NumPy generator" in finding.why
    assert judged("checkpoint_is_complete", resumption(error=error)) == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"made": 0}, "makes no step after a resume"),
        ({"began": 0}, "starts from scratch instead of resuming"),
    ],
)
def test_a_run_that_does_not_go_on_is_found(columns: dict, words: str) -> None:
    """It is one finding, and nothing else is compared."""
    events = [resumption(**columns), lost("optimizer"), departs("loss", measured=1, reference=2)]
    (finding,) = judged(RUN, *events)
    assert words in finding.summary
    assert judged("checkpoint_is_complete", *events) == []
    assert judged(NEWEST, *events) == []


def test_an_older_checkpoint_is_found() -> None:
    """The newer one that stood there is named; where there was none, older is right."""
    (finding,) = judged(NEWEST, resumption(began=4, newer="step_6.pt"))
    assert finding.at == "resumed after step 6, where step_6.pt stands"
    assert judged(NEWEST, resumption(began=4)) == []
    assert judged(NEWEST, resumption(newer="step_60.pt")) == []
