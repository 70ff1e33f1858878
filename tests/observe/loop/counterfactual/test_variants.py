"""The same step without its checkpoints, with other noise, and at another scale."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


class Net(nn.Module):
    """Two layers, between which something is done."""

    def __init__(self, between) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(6, 32), nn.Linear(32, 1), between

    def forward(self, inputs):
        """Return one number for each sample."""
        return self.last(self.between(self, inputs))


def ask(between) -> dict[str, WhatIf]:
    """Record three steps, and return the first answer to each question."""
    torch.manual_seed(0)
    points = torch.randn(4, 16, 6)
    with Recorder("x") as recorder:
        net = Net(between)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in points:
            optimizer.zero_grad()
            F.mse_loss(net(batch), batch.sum(1, keepdim=True)).backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return {event.question: event for event in reversed(asked)}


def cut_off(net, inputs):
    """Checkpoint the first layer, which is given what needs no gradient."""
    return checkpoint(net.first, inputs, use_reentrant=True)


def drawn_anew(net, inputs):
    """Checkpoint a dropout that is not the same in backward."""
    hidden = net.first(inputs)
    return checkpoint(F.dropout, hidden, use_reentrant=True, preserve_rng_state=False)


def kept(net, inputs):
    """Checkpoint a layer and its dropout as it should be."""
    return checkpoint(lambda x: F.dropout(net.first(x)), inputs, use_reentrant=False)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("between", "changed", "words"),
    [
        (cut_off, 2.0, "2 of 4 parameters get a gradient only without checkpoints"),
        (kept, 0.0, ""),
    ],
)
def test_checkpoints(between, changed, words) -> None:
    """Those that cut something off change gradients; others do not."""
    answer = ask(between)["checkpoints bypassed"]
    assert (answer.measured, answer.reference, answer.smallest) == (changed, 4.0, words)


def test_a_checkpoint_that_draws_anew() -> None:
    """Its loss is the same, and its gradients are those of other random numbers."""
    assert ask(drawn_anew)["checkpoints bypassed"].measured == 2.0


def throw_away(net, inputs):
    """Call dropout for nothing."""
    F.dropout(net.first(inputs))
    return net.first(inputs)


@pytest.mark.parametrize(
    ("between", "changed"), [(throw_away, 0.0), (lambda net, x: F.dropout(net.first(x)), 2.0)]
)
def test_dropout(between, changed) -> None:
    """Its result is used, or is not."""
    assert ask(between)["other noise"].measured == changed


@pytest.mark.parametrize("layers", [(nn.Linear(6, 32), nn.Dropout(0.5)), (nn.Dropout(0.5),)])
def test_dropout_of_another_model(layers) -> None:
    """What a model beside this one drops before its own loss is no noise of this one."""
    torch.manual_seed(0)
    points = torch.randn(4, 16, 6)
    with Recorder("x") as recorder:
        plain = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
        other = nn.Sequential(*layers, nn.Linear(32 if len(layers) > 1 else 6, 1))
        pairs = [(net, torch.optim.SGD(net.parameters(), lr=0.1)) for net in (plain, other)]
        for batch in points:
            losses = [F.mse_loss(net(batch), batch.sum(1, keepdim=True)) for net, _ in pairs]
            for _, optimizer in pairs:
                optimizer.zero_grad()
            for loss in losses:
                loss.backward()
            for _, optimizer in pairs:
                optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    assert "nothing edited" in {event.question for event in asked}
    assert not [e for e in asked if e.question == "other noise" and not e.measured]


def test_dropout_that_is_passed_by() -> None:
    """A layer of dropout that is not called, where its owner is, strikes nothing."""

    def forget(net, inputs):
        """Do without it."""
        net.drop = getattr(net, "drop", nn.Dropout(0.5))
        return net.first(inputs)

    answer = ask(forget)["other noise"]
    assert (answer.measured, answer.numbers) == (0.0, (0.0,))


@pytest.mark.parametrize("before", [False, True])
def test_a_program_that_compiles_is_not_counted_in(before) -> None:
    """What counts calls would have it compiled again, in the child; also what was before."""
    first = torch.compile(nn.Linear(6, 32), backend="eager")
    if before:
        first(torch.zeros(16, 6))

    def call(net, inputs):
        """Call a part that is compiled."""
        net.first = first
        return F.dropout(net.first(inputs))

    answers = ask(call)
    assert not {"other noise", "checkpoints bypassed"} & set(answers)
    assert answers["nothing edited"].outcome == "answered"


def test_what_earlier_trainings_compiled() -> None:
    """It is no part of this one."""
    torch.compile(nn.Linear(6, 32), backend="eager")(torch.zeros(16, 6))
    assert ask(lambda net, x: F.dropout(net.first(x)))["other noise"].measured == 2


def test_what_is_not_there_is_not_asked_about() -> None:
    """A step without dropout and checkpoints is not asked again for them."""
    answers = ask(lambda net, inputs: net.first(inputs))
    assert not {"other noise", "checkpoints bypassed"} & set(answers)
    assert answers["nothing edited"].step == 1


def ask_scaled(device: str, finish) -> WhatIf:
    """Record three steps with a gradient scaler, and return what was said of its scale."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device)
        for batch in torch.randn(3, 16, 6):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(net(batch), batch.sum(1, keepdim=True))).backward()
            finish(scaler, optimizer)
            scaler.update()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return next(event for event in asked if event.question == "losses scaled")


def clip_late(scaler, optimizer) -> None:
    """Clip what is not scaled any more."""
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
    scaler.step(optimizer)


def clip_early(scaler, optimizer) -> None:
    """Clip what is scaled."""
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
    scaler.step(optimizer)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize(
    ("device", "finish", "apart"),
    [("cpu", clip_late, 0.0), ("cpu", clip_early, 0.75), ("cuda", clip_early, 0.75)],
)
def test_a_scale(device, finish, apart) -> None:
    """What is done to gradients before they are unscaled shows, enabled or not."""
    answer = ask_scaled(device, finish)
    assert answer.measured == pytest.approx(apart, abs=1e-3)
    assert answer.numbers[2] == float(device == "cpu")
