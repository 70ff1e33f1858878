"""What the recorder sees of parameters: which ones move, and what gradients they get."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.recorded_parameters import LEARNS, flags, loop, parameters_of
from tests.observe.loop.trainings import accumulated, batches, by_hand, closures, network
from trainguard.observe.loop.recorder import Recorder


def plain(make=torch.optim.SGD, steps: int = 6, **options) -> nn.Module:
    """Train a small network with one optimizer."""
    model = network()
    return loop(model, make(model.parameters(), **options), steps)


def test_a_plain_training_moves_everything() -> None:
    """Each parameter is named in model order, held, called, given gradients and moved."""
    seen = parameters_of(plain, lr=0.05)
    assert list(seen) == [f"Sequential.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")]
    assert [p.elements for p in seen.values()] == [64, 16, 16, 1]
    assert {p.module for p in seen.values()} == {"Sequential.0", "Sequential.2"}
    for p in seen.values():
        assert flags(p) == LEARNS
        assert (p.received, p.rate) == (6, 0.05)
        assert p.gradient > 0


def test_the_largest_gradient_is_kept() -> None:
    """It is the largest norm that the parameter's gradient had at any step."""
    largest: dict[int, float] = {}
    model = network()

    def look(_step: int) -> None:
        """Measure the gradients ourselves."""
        for i, p in enumerate(model.parameters()):
            largest[i] = max(largest.get(i, 0.0), float(p.grad.norm()))

    seen = parameters_of(
        lambda: loop(model, torch.optim.SGD(model.parameters(), lr=0.05), 20, after=look)
    )
    assert [p.gradient for p in seen.values()] == pytest.approx(list(largest.values()))


def test_a_gradient_that_is_nan_once_does_not_hide_the_others() -> None:
    """The largest of the norms that are numbers is kept."""

    def train() -> nn.Module:
        """Train with one bad batch."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step, (inputs, target) in enumerate(batches(4)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs * (float("nan") if step == 2 else 1)), target).backward()
            optimizer.step()
        return model

    seen = parameters_of(train)
    assert all(0 < p.gradient < 100 for p in seen.values())


def test_gradients_are_counted_in_each_micro_batch() -> None:
    """Three steps of four micro-batches give each parameter twelve gradients."""
    assert {p.received for p in parameters_of(accumulated, 3, 4).values()} == {12}
    assert {p.received for p in parameters_of(accumulated, 3, 4, zero=False).values()} == {12}


def test_only_what_gets_a_gradient_counts_it() -> None:
    """Experts that are chosen in some steps have the counts and norms of those steps."""

    class Experts(nn.Module):
        """Three experts, one of which is used in each pass."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
            self.turn = 0

        def forward(self, inputs):
            """Use the first two experts in turn."""
            self.turn += 1
            return self.experts[self.turn % 2](inputs)

    def train() -> nn.Module:
        """Train the experts."""
        model = Experts()
        return loop(model, torch.optim.SGD(model.parameters(), lr=0.05), 7)

    seen = parameters_of(train)
    counts = {name: (p.received, p.called, p.moved) for name, p in seen.items() if "weight" in name}
    assert counts == {
        "Experts.experts.0.weight": (3, True, True),
        "Experts.experts.1.weight": (4, True, True),
        "Experts.experts.2.weight": (0, False, False),
    }
    assert [p.gradient > 0 for p in seen.values()] == [True] * 4 + [False] * 2


def test_a_frozen_backbone_stays() -> None:
    """What requires no gradient and is in no optimizer neither moves nor counts as trainable."""

    def train() -> nn.Module:
        """Train the head alone."""
        model = network()
        model[0].requires_grad_(False)
        return loop(model, torch.optim.AdamW(model[2].parameters(), lr=0.05))

    seen = parameters_of(train)
    for p in list(seen.values())[:2]:
        assert flags(p) == {"called"}
        assert (p.received, p.gradient, p.rate) == (0, 0.0, 0.0)
    assert all(flags(p) == LEARNS for p in list(seen.values())[2:])


@pytest.mark.parametrize("to_none", [True, False])
def test_an_optimizer_that_moves_what_is_frozen_is_seen(to_none: bool) -> None:
    """A gradient that was zeroed and not removed keeps momentum and weight decay at work."""

    def train() -> nn.Module:
        """Freeze a layer after three steps."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        for step, (inputs, target) in enumerate(batches(8)):
            if step == 3:
                model[0].requires_grad_(False)
            optimizer.zero_grad(set_to_none=to_none)
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
        return model

    seen = list(parameters_of(train).values())
    assert [p.moved_frozen for p in seen] == [not to_none] * 2 + [False] * 2
    assert [p.thawed for p in seen] == [True] * 2 + [False] * 2
    assert all(flags(p) >= LEARNS for p in seen)


def test_frozen_parameters_in_an_optimizer_stay() -> None:
    """Weight decay does not touch what has no gradient."""

    def train() -> nn.Module:
        """Hand all parameters to the optimizer, the frozen ones too."""
        model = network()
        model[0].requires_grad_(False)
        return loop(model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5))

    seen = list(parameters_of(train).values())
    assert all(flags(p) == {"held", "called"} for p in seen[:2])


def test_what_is_thawed_on_the_way_is_told() -> None:
    """A layer that learns from the fourth step on was thawed."""
    model = network()
    model[0].requires_grad_(False)

    def thaw(step: int) -> None:
        """Let the first layer learn after three steps."""
        if step == 2:
            model[0].requires_grad_(True)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = list(parameters_of(lambda: loop(model, optimizer, after=thaw)).values())
    assert [p.thawed for p in seen] == [True, True, False, False]
    assert [p.received for p in seen] == [3, 3, 6, 6]
    assert all(flags(p) >= LEARNS for p in seen)


def test_tied_parameters_are_told_once() -> None:
    """An embedding that is the output layer too has one event, with its first name."""

    class Tied(nn.Module):
        """Predict a token from a token."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            """Return logits."""
            return self.out(self.embed(tokens))

    def train() -> nn.Module:
        """Train on random tokens."""
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            tokens = torch.randint(11, (16,))
            F.cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
        return model

    (tied,) = parameters_of(train).values()
    assert (tied.name, tied.received, tied.moved) == ("Tied.embed.weight", 4, True)


def test_steps_by_hand_move_what_nobody_holds() -> None:
    """Without an optimizer nothing is held, and everything moves."""
    for through_data in (False, True):
        seen = parameters_of(by_hand, 5, through_data=through_data)
        assert len(seen) == 4
        assert all(p.moved and not p.held and p.gradient > 0 for p in seen.values())
        assert all(p.received >= 4 for p in seen.values())


def test_closures_are_counted() -> None:
    """L-BFGS asks for several gradients in a step."""
    seen = parameters_of(closures, 3)
    assert all(p.moved and p.held and p.received >= 3 for p in seen.values())


def test_a_rate_of_zero_moves_nothing() -> None:
    """Gradients come, and nothing moves."""
    seen = parameters_of(plain, lr=0.0)
    assert all(p.gradient > 0 and p.received == 6 and not p.moved for p in seen.values())


@pytest.mark.parametrize("name", ["requires_grad", "require_grad"])
@pytest.mark.parametrize("kept", [True, False])
def test_what_was_to_be_frozen_by_another_name(name: str, kept: bool) -> None:
    """It is told where it has moved since; what is trained before, and held no more, is not."""

    def train() -> nn.Module:
        """Train all, then mean to freeze the first layer, and train all or the last one."""
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        loop(model, torch.optim.SGD(model.parameters(), lr=0.05), 4)
        for one in [model[0]] if name == "requires_grad" else model[0].parameters():
            setattr(one, name, False)
        loop(model, torch.optim.SGD(model[int(kept) :].parameters(), lr=0.05), 4)
        return model

    unheard = {p.name: p.unheard for p in parameters_of(train).values() if p.unheard}
    said = "Linear.requires_grad" if name == "requires_grad" else name
    first = ("Sequential.0.weight", "Sequential.0.bias")
    assert unheard == ({} if kept else dict.fromkeys(first, said))


def test_the_training_is_the_same_bit_for_bit() -> None:
    """What is watched ends in the state in which it would have ended."""

    def train() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Train with dropout, and return all state."""
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        teacher = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        loop(model, optimizer, 12)
        return {**model.state_dict(), "other": teacher[0].weight}, torch.get_rng_state()

    state, stream = train()
    with Recorder("x"):
        recorded, recorded_stream = train()
    assert all(torch.equal(state[name], recorded[name]) for name in state)
    assert torch.equal(stream, recorded_stream)
