"""What a user reads when a loss breaks an invariant: whole messages, as they are printed."""

import re

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.loss.observer
import trainguard.pytest_plugin.session  # noqa: F401
from trainguard.core.catalogue import catalogue, find_invariants
from trainguard.events.trace import Sample, Trace
from trainguard.judging.verdict import Config, Verdict
from trainguard.report.text import render

HEAD = """
import torch
from torch import Tensor
import trainguard as tg

"""
# One component for each invariant, wrong in the way that the invariant is about.
LOSSES = {
    "value_is_finite": """
def cross_entropy(probability, label):
    return -(label * probability.log() + (1 - label) * (1 - probability).log()).mean()

loss = tg.Loss(cross_entropy, probability=tg.real("B", 0, 1), label=tg.choice(0., 1., shape="B"))
""",
    "gradient_is_finite": """
def root_error(predicted, target):
    error = predicted - target
    return torch.where(error > 0, error.abs().sqrt(), error.abs()).mean()

loss = tg.Loss(
    root_error,
    predicted=tg.real("B D", -1, 1),
    target=tg.real("B D", -1, 1, grad=False),
)
""",
    "gradient_is_bounded": """
def gaussian_nll(mean, log_scale, target):
    return (0.5 * ((target - mean) * (-log_scale).exp()) ** 2 + log_scale).mean()

loss = tg.Loss(
    gaussian_nll,
    mean=tg.real("B", -1, 1),
    log_scale=tg.real("B", -12, 6),
    target=tg.real("B", -1, 1, grad=False),
)
""",
    "gradient_is_alive": """
def clamped_nll(mean, log_scale, target):
    log_scale = log_scale.clamp(-7, 2)
    return (0.5 * ((target - mean) * (-log_scale).exp()) ** 2 + log_scale).mean()

loss = tg.Loss(
    clamped_nll,
    mean=tg.real("B", -1, 1),
    log_scale=tg.real("B", -12, 6),
    target=tg.real("B", -1, 1, grad=False),
)
""",
    "gradient_is_continuous": """
def smooth_l1(predicted, target):
    error = (predicted - target).abs()
    return torch.where(error < 1, 0.5 * error**2, error).mean()

loss = tg.Loss(
    smooth_l1,
    predicted=tg.real("B", -2, 2),
    target=tg.real("B", -2, 2, grad=False),
)
""",
    "gradient_matches_finite_difference": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, grad):
        (x,) = context.saved_tensors
        return x * grad

def squared_error(predicted, target):
    return Square.apply(predicted - target).mean()

loss = tg.Loss(
    squared_error,
    predicted=tg.real("B", -2, 2),
    target=tg.real("B", -2, 2, grad=False),
)
""",
    "low_precision_agrees": """
def centred_error(predicted, target):
    return ((predicted + 100) - (target + 100)).square().mean()

loss = tg.Loss(
    centred_error,
    predicted=tg.real("B", -2, 2),
    target=tg.real("B", -2, 2, grad=False),
    dtypes=("float32", "bfloat16"),
)
""",
    "samples_do_not_mix": """
def critic_error(value, reward):
    return (value - reward).square().mean()

loss = tg.Loss(
    critic_error,
    value=tg.real("B 1", -1, 1),
    reward=tg.real("B", -1, 1, grad=False),
    reduction="mean",
)
""",
    "padding_is_ignored": """
def frame_error(predicted, target, valid):
    return ((predicted - target) ** 2).mean()

loss = tg.Loss(
    frame_error,
    predicted=tg.real("B T", -1, 1),
    target=tg.real("B T", -1, 1, grad=False),
    valid=tg.mask("B T"),
)
""",
    "relations_hold": """
def rank(scores, worth):
    better = torch.sign(worth - worth.roll(1, 0)).clamp(min=0)
    return torch.nn.functional.softplus(-better * (scores - scores.roll(1, 0))).mean()

def turn_round(inputs):
    return {name: tensor.flip(0) for name, tensor in inputs.items()}

loss = tg.Loss(
    rank,
    scores=tg.real("B", -4, 4),
    worth=tg.real("B", 0, 1, grad=False),
    relations=[tg.Relation("order", edit=turn_round, then=torch.allclose)],
)
""",
    "components_are_balanced": """
def elbo(pixels, image, latent):
    return {"pixels": ((pixels - image) ** 2).sum(), "kl": 1e-6 * (latent**2).mean()}

loss = tg.Loss(
    elbo,
    pixels=tg.real("B D", 0, 255),
    image=tg.real("B D", 0, 255, grad=False),
    latent=tg.real("B D", -3, 3),
    components=("pixels", "kl"),
)
""",
    "likelihood_sums_to_one": """
def logistic_nll(mean, sample):
    above = torch.sigmoid((sample - mean + 1 / 256) * 30)
    below = torch.sigmoid((sample - mean - 1 / 256) * 30)
    return -(above - below).clamp_min(1e-12).log().sum()

loss = tg.Loss(
    logistic_nll,
    mean=tg.real("B", -1, 1),
    sample=tg.bins("B", -1, 1, 256),
    likelihood="sample",
)
""",
    "call_leaves_no_trace": """
def scaled_error(predicted, target):
    torch.manual_seed(0)
    return (predicted - target.mul_(2).sub_(1)).square().mean()

loss = tg.Loss(
    scaled_error,
    predicted=tg.real("B", -1, 1),
    target=tg.real("B", 0, 1, grad=False),
)
""",
}
OTHERS = {
    "unobservable": """
def forgets(predicted, target):
    error = (predicted - target).square().mean()

loss = tg.Loss(forgets, predicted=tg.real("B", -1, 1), target=tg.real("B", -1, 1, grad=False))
""",
    "stale": """
def squared_error(predicted, target):
    return (predicted - target).square().mean()

loss = tg.Loss(
    squared_error,
    predicted=tg.real("B", -1, 1),
    target=tg.real("B", -1, 1, grad=False),
    allow={"value_is_finite": "overflows in float16, see ticket 12"},
)
""",
}


def messages(pytester: pytest.Pytester, code: str, invariant: str) -> str:
    """Return what is printed under the headlines of the failures."""
    pytester.makepyfile(guard_loss=HEAD + code)
    result = pytester.runpytest_inprocess("--trainguard", f"--trainguard-select={invariant}")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]
    # How many points were like it follows from the effort and not from the message.
    return re.sub(r"\(\d+ of \d+ points\)", "(N of M points)", failures)


@pytest.mark.parametrize("name", LOSSES)
def test_a_broken_invariant(name: str, pytester, snapshot) -> None:
    """The message names the invariant, the place, both numbers, the case and the way on."""
    text = messages(pytester, LOSSES[name], name)
    assert text == snapshot
    for one in re.split(r"\n\n|\n(?=____)", text):
        rows = [row for row in one.splitlines() if not row.startswith("____")]
        assert all(len(row) <= 100 and row.isascii() for row in rows)
        assert len([row for row in rows if row[:3] != "   "]) <= 10


@pytest.mark.parametrize("name", OTHERS)
def test_another_failure(name: str, pytester, snapshot) -> None:
    """What cannot be observed and what is excused for nothing have the same form."""
    assert messages(pytester, OTHERS[name], "value_is_finite") == snapshot


def test_devices_that_differ(snapshot) -> None:
    """The one message that takes a second device is rendered from a trace written by hand."""
    made = find_invariants("devices_agree")[0]
    sample = Sample(quantity="device", measured=0.0213, label="cuda")
    (finding,) = made.judge(Trace("loss", (sample,)))
    rerun = "pytest --trainguard 'guard_loss.py::loss::devices_agree'"
    assert render(finding, Verdict(declared(), made, Config(), "broken", rerun=rerun)) == snapshot


def declared() -> object:
    """Declare a loss for the place of its declaration, which is left out."""
    import trainguard as tg

    subject = tg.Loss(lambda x: x.sum(), x=tg.real("B", -1, 1), name="loss")
    object.__setattr__(subject, "file", "")
    return subject


def test_every_invariant_has_a_message() -> None:
    """An invariant that is added to the family is to be read here first."""
    assert {made.name for made in catalogue("loss")} == {*LOSSES, "devices_agree"}
