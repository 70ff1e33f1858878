"""Steps predicted on fake tensors, held against real ones."""

from collections.abc import Iterator
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from tests.observe.memory.networks import (
    Convolutions,
    Transformer,
    next_character,
    of_transformer,
    real_peak,
)
from trainguard.core.errors import SubjectError
from trainguard.observe.memory.predict import follow_step, measure_step, predict_step
from trainguard.observe.memory.training import Training
from trainguard.observe.tools.isolation import isolate


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run every step as an observation does: seeded, on one thread."""
    with isolate(0):
        yield


def test_a_transformer_is_predicted_to_the_byte() -> None:
    """What is predicted for the cpu is what torch's profiler sees of the real step."""
    assert predict_step(of_transformer, "cpu").timeline.peak().total == real_peak(of_transformer)


def test_what_was_measured_is_what_was_predicted() -> None:
    """A ledger of real tensors comes to the same peak, by the same categories."""
    fake, real = predict_step(of_transformer, "cpu"), measure_step(of_transformer, "cpu", "")
    assert fake.timeline.peak().categories == real.timeline.peak().categories
    assert (fake.how, real.how) == ("predicted for cpu on fake tensors", "measured on cpu")


def test_convolutions_are_predicted_within_two_percent() -> None:
    """With the scratch space of its kernels, a convolutional step in bfloat16 is as measured."""

    def loss(module: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean square of what the network makes under autocast."""
        with torch.autocast("cpu", torch.bfloat16):
            made = module(images)
        return made.float().square().mean(), made

    training = Training(
        Convolutions, partial(torch.zeros, 8, 3, 64, 64), loss, torch.optim.SGD, foreach=False
    )
    real = real_peak(lambda: training)
    found = predict_step(lambda: training, "cpu").timeline.peak().total
    assert found == pytest.approx(real, rel=0.02)


def test_checkpointing_shows() -> None:
    """With activation checkpointing fewer activations are held at their highest moment."""
    deep = partial(Transformer, layers=6)
    plain = predict_step(lambda: of_transformer(build=deep), "cpu").timeline.highest()
    saving = partial(deep, checkpointed=True)
    saved = predict_step(lambda: of_transformer(build=saving), "cpu").timeline.highest()
    assert saved["activations"] < 0.5 * plain["activations"]
    assert saved["parameters"] == plain["parameters"]


def test_state_and_averages_are_told_apart() -> None:
    """AdamW holds two of each parameter, and an average one."""
    training = of_transformer(average=AveragedModel)
    held = predict_step(lambda: training, "cpu").timeline.highest()
    assert held["optimizer"] == pytest.approx(2 * held["parameters"], rel=0.01)
    assert held["averages"] == pytest.approx(held["parameters"], rel=0.01)
    assert held["gradients"] == held["parameters"]


def test_the_average_of_batch_statistics_is_predicted() -> None:
    """A copied model has the counter of a batch norm too, which is a constant to torch."""
    training = Training(
        build=lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)),
        feed=lambda: torch.zeros(8, 64),
        loss=lambda module, batch: (module(batch).square().mean(), None),
        optimizer=torch.optim.AdamW,
        average=partial(AveragedModel, use_buffers=True),
    )
    made = follow_step(lambda: training, "cpu")
    assert made.how.startswith("predicted"), made.detail
    held = made.timeline.highest()
    copied = 8  # bytes, of the average's own counter of updates
    assert held["averages"] == held["parameters"] + held["buffers"] + copied


def test_working_on_all_parameters_at_once_takes_more() -> None:
    """What CUDA does by default is predicted for it: one more copy of all parameters."""
    at_once = predict_step(lambda: of_transformer(foreach=True), "cuda").timeline.highest()
    in_turn = predict_step(of_transformer, "cuda").timeline.highest()
    assert at_once["temporaries"] > in_turn["temporaries"]


def test_steps_are_counted_on_the_cpu() -> None:
    """An optimizer counts there, unless it is fused; on the device a count takes a whole block."""

    def held(target: str, **how: bool) -> int:
        """Return the bytes of the state of AdamW, for one weight and one bias."""
        training = Training(
            build=lambda: nn.Linear(128, 1),
            feed=lambda: torch.zeros(1, 128),
            loss=lambda module, batch: (module(batch).mean(), None),
            optimizer=partial(torch.optim.AdamW, **how),
        )
        return predict_step(lambda: training, target).timeline.highest()["optimizer"]

    assert held("cuda") == 4 * 512
    assert held("cuda", fused=True) == 6 * 512
    assert held("cpu") == 4 * (2 * 129 + 2)


def test_a_cache_of_the_team_stays_real() -> None:
    """What a prediction puts into a cache is not there afterwards."""

    @cache
    def mask(size: int) -> Tensor:
        """Return a causal mask, made once."""
        return torch.ones(size, size).tril()

    def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, None]:
        """Use the cached mask in the loss."""
        return (module(batch).mean() * mask(8)).sum(), None

    predict_step(lambda: of_transformer(loss=loss), "cpu")
    assert type(mask(8)) is Tensor
    assert mask.cache_info().misses == 1


def test_a_logged_number_is_taken_for_granted() -> None:
    """A loss that is read for a log does not stop a prediction, which says so."""

    def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        """Return the loss, and its number for the log."""
        found, _ = next_character(module, batch)
        return found, found.item()

    told = predict_step(lambda: of_transformer(loss=loss), "cpu").detail
    assert told.startswith("took 1 logged numbers for granted: test_predict.py:")


def test_a_step_that_looks_at_its_data_is_measured() -> None:
    """Where a condition decides what is done, the step is run on real tensors, which is said."""

    def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, None]:
        """Go another way for some batches."""
        logits = module(batch)
        return (logits.sum() if batch.max() > 5 else logits.mean()), None

    seen = follow_step(lambda: of_transformer(loss=loss), "cpu")
    assert seen.how == "measured on cpu"
    assert "on fake tensors it raised" in seen.detail


def test_a_real_step_ends_before_the_machine_does() -> None:
    """A step that takes more than it is given is stopped, and what it held so far is known."""
    seen = measure_step(of_transformer, "cpu", "", most=500_000)
    assert seen.is_exhausted
    assert seen.timeline.changes


def test_what_fails_on_both_is_the_subjects_own_fault() -> None:
    """An exception of the team's code is raised as it is on real tensors, with its traceback."""

    def build() -> nn.Module:
        """Fail as a factory may."""
        raise SubjectError("it cannot be built")

    with pytest.raises(SubjectError, match="it cannot be built"):
        follow_step(lambda: of_transformer(build=build), "cpu")


class Shadow:
    """An averaged copy that keeps the model it averages, as most such classes do."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = [parameter.detach().clone() for parameter in model.parameters()]

    def update(self) -> None:
        """Follow the model by one percent."""
        for kept, parameter in zip(self.shadow, self.model.parameters(), strict=True):
            kept.lerp_(parameter.detach(), 0.01)


def test_the_model_that_an_average_refers_to_is_not_its_copy() -> None:
    """Parameters stay parameters where the average holds the model itself."""
    held = predict_step(lambda: of_transformer(average=Shadow), "cpu").timeline.highest()
    assert held["averages"] == held["parameters"]
