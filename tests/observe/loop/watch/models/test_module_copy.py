"""Trying things out on a copy, so that nobody notices."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loop.trainings import network
from trainguard.events.loop import Average, Evaluation, Step, Term
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models import module_copy
from trainguard.observe.loop.watch.models.module_copy import (
    CopyableCall,
    attempt,
    difference,
    largest,
)
from trainguard.observe.loop.window import Forward

INPUTS = (torch.ones(2, 4),)


def tried(module: nn.Module, look=None, *, inputs=INPUTS, keywords: tuple[str, ...] = ()):
    """Try something on a copy of a module."""
    forward = Forward("Net", 0, True, True, keywords=keywords)
    with Recorder("x") as recorder:
        call = CopyableCall.of(forward, module, inputs)
        seen = attempt(recorder, call, look or (lambda run: run(call.inputs)))
        assert recorder.patches.active
    return seen


class Net(nn.Module):
    """A module that leaves traces wherever it can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.calls, self.last = 0, None
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        """Return something, and be noticed."""
        print("called")
        self.calls += 1
        self.seen += 1
        self.last = self.norm(self.first(inputs))
        noise = random.random() + np.random.rand() + torch.rand(1)
        return {"output": self.last * scale, "count": torch.ones(2), "noise": noise}


def test_nothing_is_left_behind(capsys: pytest.CaptureFixture) -> None:
    """No random number, count, buffer, mode, line or graph of the live module changes."""
    net = Net()
    net(*INPUTS)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    capsys.readouterr()
    assert len(tried(net)) == 3
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    assert (net.calls, net.training, capsys.readouterr().out) == (1, True, "")
    assert net.last.grad_fn is not None


def test_names_of_inputs_are_kept() -> None:
    """What was given by name is given by name again."""
    once, twice = (
        tried(Net(), inputs=(*INPUTS, scale), keywords=("scale",))[0] for scale in (0.0, 2.0)
    )
    assert not once.any()
    assert twice.any()


def test_nothing_is_recorded() -> None:
    """What runs on a copy is no step, no evaluation and no term of the run."""

    class Loss(nn.Module):
        """A model that computes its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Return the loss."""
            return F.mse_loss(self.first(inputs), inputs)

    with Recorder("x") as recorder:
        call = CopyableCall.of(Forward("Net", 0, True, True), Loss(), INPUTS)
        assert attempt(recorder, call, lambda run: run(INPUTS)) is not None
        assert recorder.called == set()
    kinds = (Step, Evaluation, Term, Average)
    assert not [event for event in recorder.trace if isinstance(event, kinds)]


def test_the_copy_is_gone() -> None:
    """A copy that keeps itself alive is empty, so that it weighs nothing."""

    class Selfish(nn.Module):
        """A module that refers to itself."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.own = [self]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Return something of the copy."""
            found.append(weakref.ref(self))
            return self.first(inputs)

    found: list[weakref.ref] = []
    gc.disable()
    try:
        assert tried(Selfish()) is not None
        twin = found[-1]()
        assert twin is not None
        assert list(twin.parameters()) == []
    finally:
        gc.enable()


def test_a_failing_copy_says_nothing() -> None:
    """What the second call raises is not the user's to see."""

    class Once(nn.Module):
        """A module that can be called in training mode only."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Refuse."""
            raise RuntimeError(self.training)

    assert tried(Once()) is None
    assert tried(network(), lambda run: 1 / 0) is None


def with_hook(module: nn.Module) -> nn.Module:
    """Listen to the output of a layer."""
    module[0].register_forward_hook(lambda *_: None)
    return module


def with_own_forward(module: nn.Module) -> nn.Module:
    """Wrap the forward of a layer in a closure, which a copy would share."""
    forward = module[0].forward
    module[0].forward = lambda inputs: forward(inputs) * 2
    return module


def with_generator(module: nn.Module) -> nn.Module:
    """Hold what cannot be copied."""
    module.rows = iter(range(3))
    module.stream = (row for row in range(3))
    return module


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        with_hook,
        with_own_forward,
        with_generator,
        torch.jit.script,
        lambda module: nn.Sequential(torch.compile(module, backend="eager")),
    ],
    ids=["hook", "forward", "generator", "script", "compiled"],
)
def test_what_would_notice_is_not_copied(make) -> None:
    """Hooks, closures, scripts and what is compiled inside are left alone."""
    assert tried(make(network())) is None


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_would_not_notice_is_copied() -> None:
    """Hooks of torch, compiled models and bound methods do not stand in the way."""
    normed = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    compiled = torch.compile(network(), backend="eager")
    bound = network()
    bound.forward = bound.forward
    modern = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))
    assert all(tried(module) is not None for module in (normed, compiled, bound, modern))


def test_a_buffer_that_a_closure_reaches_is_put_back() -> None:
    """A function inside the module may run the live one: what it counts is set back."""

    class Leaky(nn.Module):
        """A module that holds a function of itself."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.call = lambda inputs: self.norm(inputs) * 1

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Call the function."""
            return self.call(inputs)

    net = Leaky()
    assert tried(net) is not None
    assert net.norm.num_batches_tracked == 0
    assert not net.norm.running_mean.any()


def test_modules_with_large_buffers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be copied costs memory, so that there is a limit to it."""
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    large = nn.Sequential(normed, nn.BatchNorm1d(8))
    size = sum(buffer.numel() * buffer.element_size() for buffer in normed.buffers())
    monkeypatch.setattr(module_copy, "_MOST_BYTES", size)
    assert tried(normed) is not None
    assert tried(large) is None


def test_several_processes_are_left_alone(tmp_path) -> None:
    """One process alone must not run what others wait for; DDP is recorded all the same."""
    where = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)))
        assert tried(model) is None
        with Recorder("x") as recorder:
            train(model)
    finally:
        torch.distributed.destroy_process_group()
    terms = [event for event in recorder.trace if isinstance(event, Term)]
    assert [(term.calls, term.shares) for term in terms] == [(4, ()), (4, ())]
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "mix"]


def train(model: nn.Module) -> None:
    """Train on two terms, with samples that mix."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    for inputs, classes in DataLoader(data, batch_size=16, shuffle=True):
        scores = model(inputs)
        first = F.cross_entropy(scores, classes)
        (first + F.mse_loss(scores, torch.ones_like(scores))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_broken_forward_is_the_users() -> None:
    """An exception in the user's forward passes through, and what there was is in the trace."""

    class Breaks(nn.Linear):
        """A layer that fails at its third call."""

        calls = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Fail in the end."""
            self.calls += 1
            if self.calls > 3:
                raise KeyError("user")
            return super().forward(inputs)

    recorder = Recorder("x")
    with pytest.raises(KeyError, match="user"), recorder:
        train(nn.Sequential(Breaks(4, 3)))
    assert [event.calls for event in recorder.trace if isinstance(event, Term)] == [3, 3]


def test_differences_are_of_outputs_that_are_alike() -> None:
    """The largest difference counts; outputs of different shapes differ without end."""
    ones = torch.ones(2)
    assert difference([ones, ones], [ones, ones * 3]) == 2
    assert difference([ones], [torch.ones(3)]) == float("inf")
    assert largest([ones * -4, ones]) == 4
    assert largest([]) == 0
