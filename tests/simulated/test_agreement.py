"""`devices_agree` compares the CPU and both devices, whichever a component is judged on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trainguard as tg
from tests.simulated.conftest import DEVICES

EVERY = ("cpu", *DEVICES)


class Right(nn.Module):
    """Adds positions, on whatever device its input is."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 3)

    def forward(self, words):
        """Return the projection of the input with its positions."""
        return self.project(words + self.positions(words))

    def positions(self, words):
        """Return a number for each place."""
        return torch.arange(4.0, device=words.device)


class OnTheDefaultDevice(Right):
    """Makes its positions where new tensors are made."""

    def positions(self, words):
        """Return a number for each place, on the CPU."""
        return torch.arange(4.0)


class OnTheFirst(Right):
    """Makes its positions on the first accelerator, as `.cuda()` does."""

    def positions(self, words):
        """Return a number for each place."""
        return torch.arange(4.0, device="cpu" if words.is_cpu else "sim:0")


class NeverMoved(Right):
    """Keeps its positions in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.arange(4.0)

    def positions(self, words):
        """Return what was made with the module."""
        return self.places


class Otherwise(Right):
    """Takes a shortcut on accelerators that computes something else."""

    def forward(self, words):
        """Return the projection, without positions on an accelerator."""
        return super().forward(words) if words.is_cpu else self.project(words)


class OtherwiseOnTheCpu(Right):
    """Takes the shortcut everywhere but on accelerators."""

    def forward(self, words):
        """Return the projection, without positions on the CPU."""
        return self.project(words) if words.is_cpu else super().forward(words)


class InAnotherOrder(Right):
    """Adds up from the other end on an accelerator, as kernels of its own would."""

    def forward(self, words):
        """Return the sums of the projection over all places."""
        parts = super().forward(words)
        return parts.sum(1) if words.is_cpu else sum(reversed(parts.unbind(1)))


class ChoosesOneOfTwo(Right):
    """Goes on with the greater of two scores, which are equal where a place is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(4, 2, bias=False)

    def forward(self, words):
        """Return the half of the projection that is chosen; kernels differ where both are equal."""
        scores = self.score(words * torch.arange(words.shape[0], device=words.device)[:, None])
        first, second = scores.unbind(-1)
        chosen = first >= second if words.is_cpu else first > second
        return torch.where(chosen[:, None], super().forward(words), -super().forward(words))


class Draws(Right):
    """Adds noise, in evaluation too."""

    def forward(self, words):
        """Return the projection of the input with noise from the device's own stream."""
        noise = torch.randn(words.shape, generator=self.stream(words), device=words.device)
        return self.project(words + noise)

    def stream(self, words):
        """Return a stream that depends on the kind of device, as those of real ones do."""
        seed = torch.initial_seed() + (not words.is_cpu)
        return torch.Generator(words.device).manual_seed(seed)


def model(kind: type[nn.Module]) -> tg.Model:
    """Declare a model of a class."""
    return tg.Model(kind, inputs={"words": tg.real("B T", -1, 1)}, sizes={"B": 3, "T": 4})


def forgets(prediction, target):
    """Weigh errors by a tensor that is always on the CPU."""
    return (F.mse_loss(prediction, target, reduction="none") * torch.ones(prediction.shape)).mean()


def error(prediction, target):
    """Return the mean squared error."""
    return F.mse_loss(prediction, target)


def loss(function) -> tg.Loss:
    """Declare a loss."""
    return tg.Loss(function, prediction=tg.real("B N", -2, 2), target=tg.real("B N", -2, 2))


def judge(subject, *devices: str):
    """Judge whether devices agree on a subject, those named and all that it is compared with."""
    return tg.check(subject, select=["*devices_agree"], devices=devices, profile="quick")


@pytest.mark.parametrize("kind", [Right, InAnotherOrder, ChoosesOneOfTwo])
def test_a_model_that_moves_agrees(kind):
    """It is compared on every device, and may round otherwise on each."""
    (judged,) = judge(model(kind), *EVERY)
    assert judged.outcome == "passed"


@pytest.mark.parametrize(
    "kind", [OnTheDefaultDevice, OnTheFirst, NeverMoved, Otherwise, OtherwiseOnTheCpu]
)
def test_a_model_that_does_not_is_found(kind):
    """Whatever is wrong on an accelerator is found."""
    with pytest.raises(tg.Broken, match="devices_agree"):
        judge(model(kind), *EVERY)


def test_a_model_of_the_first_device_fails_on_the_second():
    """What is right on the CPU and on the first device is tried on the second, unasked."""
    with pytest.raises(tg.Broken, match="sim:1"):
        judge(model(OnTheFirst))


def test_a_loss_that_moves_agrees():
    """A loss is compared on every device."""
    (judged,) = judge(loss(error), *EVERY)
    assert judged.outcome == "passed"


def noisy(prediction, target):
    """Return the error against a target with noise, from the device's own stream."""
    seed = torch.initial_seed() + (not target.is_cpu)
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed))
    return F.mse_loss(prediction, target + noise.to(target))


@pytest.mark.parametrize("subject", [model(Draws), loss(noisy)])
def test_random_numbers_are_others_on_each_device(subject):
    """What draws them is not compared, and that is said."""
    (judged,) = judge(subject)
    assert (judged.outcome, "random" in judged.reason) == ("skipped", True)


def cancelled(prediction, target):
    """Return an error of nearly equal numbers, which an accelerator rounds otherwise."""
    there = prediction * (1 if prediction.is_cpu else 1 + 2e-7)
    return ((there + 1000).square() - (target + 1000).square()).sin().mean()


def test_a_loss_that_rounding_moves_much():
    """What the last digit of an input does on the CPU may differ between devices."""
    (judged,) = judge(loss(cancelled))
    assert judged.outcome == "passed"


def test_a_loss_that_does_not_is_found():
    """A tensor on the CPU inside of a loss is found, and said to be on another device."""
    with pytest.raises(Exception, match="device"):
        judge(loss(forgets), *EVERY)


@pytest.mark.parametrize("device", EVERY)
def test_everything_is_judged_on_a_device(device):
    """All that applies to a loss and a model passes on each device."""
    for subject in (model(Right), loss(error)):
        judged = tg.check(subject, devices=[device], profile="quick")
        assert {verdict.config.device for verdict in judged} <= {device, ""}
        assert {verdict.outcome for verdict in judged} <= {"passed", "skipped"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sim:2", "The device 'sim:2' is not present here, only cpu, sim."),
        ("sim:-1", "PyTorch knows no device 'sim:-1'."),
        ("accelerator", "PyTorch knows no device 'accelerator'."),
        ("privateuseone", "The device 'privateuseone' is not present here, only cpu, sim."),
        ("cuda:1", "The device 'cuda:1' is not present here, only cpu, sim."),
    ],
)
def test_a_device_that_is_not_there_is_said(name, said):
    """One sentence says so, of a name that torch knows and of one that it does not."""
    if name == "cuda:1" and torch.cuda.device_count() > 1:
        pytest.skip("it is there")
    with pytest.raises(tg.DeclarationError) as told:
        tg.check(loss(error), devices=[name])
    assert str(told.value).startswith(said)
