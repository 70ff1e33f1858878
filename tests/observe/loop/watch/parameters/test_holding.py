"""What the recorder sees of who holds parameters: optimizers, their groups, modules, nobody."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.recorded_parameters import LEARNS, flags, loop, parameters_of, told
from tests.observe.loop.trainings import adversaries, batches, network
from trainguard.observe.loop.recorder import Recorder


def test_a_head_that_was_replaced_leaves_an_orphan() -> None:
    """The optimizer holds the old head; the new one gets gradients and stands still."""

    def train() -> nn.Module:
        """Replace the head after the optimizer was built."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model[2] = nn.Linear(16, 1)
        return loop(model, optimizer)

    seen = parameters_of(train)
    assert [n for n, p in seen.items() if p.orphan] == [
        "parameter of shape (1, 16)",
        "parameter of shape (1,)",
    ]
    new = [p for n, p in seen.items() if n.startswith("Sequential.2")]
    assert len(new) == 2
    assert all(flags(p) == {"trainable", "called"} for p in new)
    assert all(p.received == 6 and p.gradient > 0 for p in new)


def test_a_head_that_is_replaced_on_the_way_leaves_an_orphan() -> None:
    """It was part of the model once, and is no more."""
    model = network()

    def replace(step: int) -> None:
        """Replace the head."""
        if step == 1:
            model[2] = nn.Linear(16, 1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = told(lambda: loop(model, optimizer, after=replace))
    assert [p.orphan for p in seen] == [False, False, True, True, False, False]
    assert [p.held for p in seen] == [True, True, True, True, False, False]
    assert seen[2].name == seen[4].name == "Sequential.2.weight"


def test_a_parameter_without_a_module_is_no_mystery() -> None:
    """Loss weights that are bare parameters are orphans that get gradients and move."""

    def train() -> tuple[nn.Module, nn.Parameter]:
        """Learn a factor of the loss."""
        model, weight = network(), nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.05)
        for inputs, target in batches(4):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), target)
            (loss * torch.exp(-weight) + weight).sum().backward()
            optimizer.step()
        return model, weight

    bare = parameters_of(train)["parameter of shape (1,)"]
    assert flags(bare) == {"trainable", "held", "orphan", "moved"}
    assert (bare.received, bare.module) == (4, "")


def test_a_forgotten_head_is_told_even_if_the_model_is_gone() -> None:
    """A training inside a function leaves nothing alive; what was seen last is told."""

    def train() -> None:
        """Leave the head out of the optimizer, and return nothing."""
        model = network()
        loop(model, torch.optim.SGD(model[0].parameters(), lr=0.05))

    seen = list(parameters_of(train).values())
    assert [flags(p) for p in seen] == [LEARNS] * 2 + [{"trainable", "called"}] * 2
    assert all(p.received == 6 and p.gradient > 0 for p in seen)


def test_what_nobody_holds_is_told_even_if_the_model_is_gone() -> None:
    """A frozen part is deleted with its model, after the last step."""

    def train() -> None:
        """Train the head alone, and return nothing."""
        model = network()
        model[0].requires_grad_(False)
        loop(model, torch.optim.SGD(model[2].parameters(), lr=0.05))

    seen = list(parameters_of(train).values())
    assert [flags(p) for p in seen] == [{"called"}] * 2 + [LEARNS] * 2


def test_a_model_that_was_given_up_is_not_told() -> None:
    """A module that was called in the first steps and deleted then is left out."""

    def train() -> nn.Module:
        """Add what another module says for three steps."""
        others = [nn.Linear(4, 1, bias=False).requires_grad_(False)]
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step, (inputs, target) in enumerate(batches(6)):
            extra = sum(float(other(inputs).mean()) for other in others)
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target + extra).backward()
            optimizer.step()
            if step == 2:
                others.clear()
        return model

    assert [p.module for p in told(train)] == ["Sequential.0"] * 2 + ["Sequential.2"] * 2


def test_an_optimizer_of_something_else_is_not_told() -> None:
    """One that is alive, never steps, and holds what is not called has nothing to do with it."""
    other = network()
    held = torch.optim.SGD(other.parameters(), lr=0.05)
    model = network()
    seen = told(lambda: loop(model, torch.optim.SGD(model.parameters(), lr=0.05)))
    assert len(seen) == 4
    del held


def test_nothing_is_kept_alive() -> None:
    """A parameter that nobody holds any more is deleted while the recording goes on."""
    with Recorder("x"):
        model = network()
        head = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with torch.no_grad():
            head(torch.randn(2, 4))
        loop(model, optimizer)
        gone = weakref.ref(head.weight)
        del head
        assert gone() is None


def test_two_optimizers_hold_their_own() -> None:
    """In an adversarial training each network is held, and counts its own gradients."""
    seen = parameters_of(adversaries, 4)
    assert [flags(p) for p in seen.values()] == [LEARNS] * 8
    counts = [p.received for p in seen.values()]
    assert sorted(set(counts)) == [4, 12]  # the critic hears from both losses, and the generator's


def test_the_highest_rate_of_a_group_is_kept() -> None:
    """Each group has its own; a schedule goes up and down again."""

    def train() -> nn.Module:
        """Train with a triangular schedule, the head at a tenth of the rate."""
        model = network()
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        shape = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - abs(s - 10) / 10)
        return loop(model, optimizer, 20, after=lambda _: shape.step())

    rates = [p.rate for p in parameters_of(train).values()]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_a_group_that_is_added_late_is_held() -> None:
    """`add_param_group` after some steps."""
    model = network()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.05)

    def add(step: int) -> None:
        """Hand the first layer over."""
        if step == 2:
            optimizer.add_param_group({"params": list(model[0].parameters())})

    seen = list(parameters_of(lambda: loop(model, optimizer, after=add)).values())
    assert all(p.held and p.moved for p in seen)
    assert all(p.received == 6 for p in seen)


def test_a_layer_that_no_optimizer_holds_is_known_as_new() -> None:
    """It is what torch draws; one that learned, was loaded or is held is not taken for that."""

    def train() -> nn.Module:
        """Leave out a new layer, and three that are not, of one model."""
        layers = [nn.Linear(24, 24) for _ in range(4)]
        model = nn.Sequential(nn.Linear(4, 24), *layers, nn.Linear(24, 1))
        with torch.no_grad():
            layers[1].weight.mul_(2.0)
        layers[2].load_state_dict(nn.Linear(24, 24).state_dict())
        layers[3].load_state_dict({"bias": torch.ones(24)}, strict=False)
        held = [*model[0].parameters(), *model[5].parameters()]
        return loop(model, torch.optim.SGD(held, lr=0.01))

    seen = parameters_of(train)
    drawn = [name for name, parameter in seen.items() if parameter.drawn]
    assert drawn == [f"Sequential.{place}.weight" for place in (1, 3, 4)]
    assert [name for name, parameter in seen.items() if parameter.loaded] == [
        *("Sequential.3.weight", "Sequential.3.bias", "Sequential.4.bias")
    ]
