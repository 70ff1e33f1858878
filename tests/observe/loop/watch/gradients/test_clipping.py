"""What the recorder sees of clipping."""

from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad
from torch.nn.utils import clip_grad_norm_ as bound_early

from tests.observe.loop.trainings import batches, network, plain, scaled
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def steps_of(train, *arguments, **options) -> list[Step]:
    """Record a training and return its steps."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(*arguments, **options)
    return [event for event in recorder.trace if isinstance(event, Step)]


def loop(clip, *, when: str = "before the step", steps: int = 4, again: bool = False) -> None:
    """Train, and call `clip(model)` at some moment of the step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, target in batches(steps):
        optimizer.zero_grad()
        loss = 100 * F.mse_loss(model(inputs), target)
        if when == "before backward":
            clip(model)
        loss.backward(retain_graph=again)
        if when == "before the step":
            clip(model)
        if again:
            loss.backward()
        optimizer.step()
        if when == "after the step":
            clip(model)


@pytest.mark.skipif(
    not hasattr(clip_grad, "_clip_grads_with_norm_"),
    reason="before torch 2.6, clip_grad_norm_ is not seen where it was bound before the recording",
)
def test_what_clipping_does_is_measured() -> None:
    """The norm before is what the function returned, the norm after what the step was made with."""
    seen: list[float] = []
    steps = steps_of(loop, lambda m: seen.append(float(bound_early(m.parameters(), 0.5))))
    assert [step.norm_before for step in steps] == pytest.approx(seen)
    assert [step.norm for step in steps] == pytest.approx([0.5] * 4, rel=1e-4)
    assert {(step.clip, step.clip_limit, step.clip_share) for step in steps} == {
        ("taken", 0.5, 1.0)
    }
    assert all("test_clipping.py:" in step.clip_source for step in steps)


def test_without_clipping_both_norms_are_one() -> None:
    """No clipping leaves no word, and no limit."""
    steps = steps_of(plain, 3)
    assert [step.norm for step in steps] == [step.norm_before for step in steps]
    assert {step.clip for step in steps} == {""}
    assert all(isnan(step.clip_limit) for step in steps)


def test_an_infinite_limit_is_a_measurement() -> None:
    """`clip_grad_norm_(..., inf)` is how people measure norms: it clips nothing."""
    steps = steps_of(loop, lambda m: nn.utils.clip_grad_norm_(m.parameters(), float("inf")))
    assert {step.clip for step in steps} == {""}


@pytest.mark.parametrize("when", ["before backward", "after the step"])
def test_clipping_at_the_wrong_moment_is_seen(when: str) -> None:
    """Gradients that are not there yet, or were used already, cannot be clipped."""
    steps = steps_of(loop, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5), when=when)
    assert {step.clip for step in steps[1:]} == {"empty"}
    assert all(step.norm > 1 for step in steps)


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
def test_a_generator_that_is_used_up_is_seen() -> None:
    """The second use of one generator of parameters clips nothing."""
    used: dict[int, object] = {}

    def clip(model: nn.Module) -> None:
        """Clip what one generator yields, again and again."""
        parameters = used.setdefault(id(model), (p for p in model.parameters()))
        nn.utils.clip_grad_norm_(parameters, 0.5)

    steps = steps_of(loop, clip)
    assert [step.clip for step in steps] == ["taken"] + ["no parameters"] * 3


def test_a_part_that_is_clipped_is_told_from_the_rest() -> None:
    """The share is of the squared norm, and the first parameter left out is named."""
    steps = steps_of(loop, lambda m: nn.utils.clip_grad_norm_(m[2].parameters(), 0.5))
    assert {step.clip for step in steps} == {"partial"}
    assert all(0 < step.clip_share < 1 for step in steps)
    assert {step.unclipped for step in steps} == {"Sequential.0.weight"}


def test_parts_that_are_clipped_one_by_one_are_the_whole() -> None:
    """A limit for each layer is no partial clipping."""

    def clip(model: nn.Module) -> None:
        """Clip each layer."""
        for layer in (model[0], model[2]):
            nn.utils.clip_grad_norm_(layer.parameters(), 0.5)

    steps = steps_of(loop, clip)
    assert {(step.clip, round(step.clip_share, 6)) for step in steps} == {("taken", 1.0)}


def test_a_backward_after_clipping_undoes_it() -> None:
    """The step is then not made with what was clipped."""
    steps = steps_of(loop, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5), again=True)
    assert {step.clip for step in steps} == {"undone"}


@pytest.mark.parametrize(("clip", "word"), [("after", "taken"), ("before", "scaled")])
def test_clipping_scaled_gradients_is_seen(clip: str, word: str) -> None:
    """A limit that is held against gradients times 65,536 is none."""
    assert {step.clip for step in steps_of(scaled, 4, clip=clip, scale=2.0**16)} == {word}


def accumulated(clip: str, edits: bool) -> None:
    """Train with three micro-batches to a step, and clip what they add up to."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            (nn.functional.mse_loss(model(torch.randn(4, 3)), torch.randn(4, 1)) / 3).backward()
        for parameter in model.parameters() if edits else ():
            parameter.grad.mul_(2)
        getattr(nn.utils, clip)(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_an_edit_by_hand_is_told_from_clipping(clip: str, edits: bool) -> None:
    """Gradients that were scaled by hand are not worth what their losses weighed."""
    with Recorder("x") as recorder:
        accumulated(clip, edits)
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert [len(step.weights) for step in steps] == [0 if edits else 3] * 2


def test_clipping_by_value_is_seen() -> None:
    """It has no limit on the norm."""
    steps = steps_of(loop, lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.01))
    assert {step.clip for step in steps} == {"taken"}
    assert all(isnan(step.clip_limit) for step in steps)


def idle(steps: int, clip: str) -> list[Event]:
    """Train two models in turns, and clip one where the second has its gradients."""
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    with Recorder("x") as recorder:
        for _ in range(steps):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(torch.randn(8, 3)), torch.randn(8, 1)).backward()
                if model is second:
                    chosen = first if clip == "other" else second
                    nn.utils.clip_grad_norm_(chosen.parameters(), 1e-3)
                optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "idle clip"]


@pytest.mark.parametrize(
    ("steps", "clip", "expected"), [(16, "other", 1), (16, "own", 0), (8, "other", 0)]
)
def test_a_line_that_clips_for_nothing_is_told(steps: int, clip: str, expected: int) -> None:
    """In ten calls or more, all of gradients that a step was made with before."""
    assert len(idle(steps, clip)) == expected


def test_gradients_that_are_put_there_by_hand_are_clipped() -> None:
    """They are there, though no pass backward has left them."""
    model = nn.Linear(3, 1)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(12):
            loss = nn.functional.mse_loss(model(torch.randn(8, 3)), torch.randn(8, 1))
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert {step.clip for step in steps} == {"taken"}
