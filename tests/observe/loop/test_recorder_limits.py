"""The recorder in long runs, in compiled ones, in children, and after the end."""

import gc
import weakref
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.observe.loop.trainings import adversaries, batches, network, plain
from trainguard.events.loop import Evaluation, Parameter, Step, Term
from trainguard.observe.loop import thinning, window
from trainguard.observe.loop.recorder import Recorder


def record(train, *arguments, steps=None, **options) -> list[Step]:
    """Record a training and return its steps."""
    torch.manual_seed(0)
    with Recorder("x", steps=steps) as recorder:
        train(*arguments, **options)
    return [event for event in recorder.trace if isinstance(event, Step)]


def test_a_long_run_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first steps only some are recorded."""
    monkeypatch.setattr(window, "DENSE", 64)
    steps = record(plain, 1152)
    some = [step for step in range(20, 64) if step % 32 % 7 == 0]
    late = [*range(64, 1024, 16), 1024, 1088]
    assert [step.step for step in steps] == [*range(20), *some, *late]


def test_recorded_steps_stand_for_all() -> None:
    """Each says how many it stands for, and the last one for no more than there were."""
    for made in (400, 80, 83, 121, 1001):
        assert sum(step.span for step in record(plain, made)) == made


def test_what_is_not_finite_is_recorded_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that would have been left out is recorded where its loss is not finite."""
    monkeypatch.setattr(window, "DENSE", 4)

    def train() -> None:
        """Break one batch of a run."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for index, (inputs, target) in enumerate(batches(12)):
            optimizer.zero_grad()
            (F.mse_loss(model(inputs), target) / (0.0 if index == 9 else 1.0)).backward()
            optimizer.step()

    assert 9 in [step.step for step in record(train)]


def test_a_loss_with_an_axis_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may go backward as it is, also where most steps are not recorded."""
    monkeypatch.setattr(window, "DENSE", 8)
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.mse_loss(net(torch.randn(1, 4)), torch.zeros(1, 1), reduction="none")
            (loss[0] + torch.full((1,), 0.1)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert recorder.steps == 40
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert all(step.loss > 0.1 for step in steps)
    (term,) = [event for event in recorder.trace if isinstance(event, Term)]
    assert (term.function, term.negative) == ("mse_loss", 0)


def test_no_tensor_outlives_the_recording() -> None:
    """Neither the trace nor the recorder keeps a model, a batch or a graph alive."""
    recorder = Recorder("x")
    with recorder:
        model = plain(5)
    gone = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters())]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


def test_the_trace_is_plain(tmp_path) -> None:
    """A trace can be written, and read back, in full."""
    with Recorder("x") as recorder:
        adversaries(3)
    text = recorder.trace.to_text()
    assert type(recorder.trace).from_text(text).to_text() == text


def test_modules_that_compile_are_seen() -> None:
    """A compiled module makes the same steps; the inside of its graph is no module of its own."""

    def train() -> None:
        """Train a compiled module."""
        model = network()
        fast = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, target in batches(4):
            optimizer.zero_grad()
            F.mse_loss(fast(inputs), target).backward()
            optimizer.step()

    steps = record(train)
    assert [step.trained for step in steps] == [1, 1, 1, 1]


def test_a_forked_child_records_nothing() -> None:
    """Workers of a DataLoader are children of the process that is recorded."""
    loader = torch.utils.data.DataLoader(Noise(), batch_size=8, num_workers=1)

    def train() -> None:
        """Train on batches that a worker makes."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    assert len(record(train)) == 4


class Noise(torch.utils.data.Dataset):
    """Samples that a module makes, in the worker."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one sample."""
        return nn.Linear(4, 4)(torch.randn(4)).detach()


def test_a_second_optimizer_is_thinned_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spans of each of two optimizers add up to the steps that it made."""
    monkeypatch.setattr(window, "DENSE", 4)

    def train() -> None:
        """Step one optimizer twice as often as the other."""
        model = network()
        first = torch.optim.SGD(model[0].parameters(), lr=0.01)
        second = torch.optim.Adam(model[2].parameters(), lr=0.01)
        for index, (inputs, target) in enumerate(batches(64)):
            model.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            first.step()
            if index % 2:
                second.step()

    steps = record(train)
    spans = {name: sum(s.span for s in steps if s.optimizer == name) for name in ("SGD", "Adam")}
    assert abs(spans["SGD"] - 64) <= 16
    assert abs(spans["Adam"] - 32) <= 16


def test_an_optimizer_that_never_steps_keeps_nothing_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long run is thinned out beside it too."""
    monkeypatch.setattr(window, "DENSE", 64)

    def train() -> None:
        """Make an optimizer for nothing."""
        idle = torch.optim.SGD(network().parameters(), lr=0.1)
        plain(144)
        assert idle.param_groups

    assert len(record(train)) == 20 + 7 + 5


class Checkpointed(nn.Sequential):
    """A network whose last layer is called without a graph, and again in backward."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the network makes of inputs."""
        hidden = self[1](self[0](inputs))
        return checkpoint(self[2], hidden, use_reentrant=True) if self.training else self[2](hidden)


def evaluated(count: int, every: int, size: int = 1, *, teach: bool = False) -> list[tuple]:
    """Train, evaluate every so many steps and at the end, and return (step, passes) of each."""
    model, teacher = Checkpointed(*network()), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.utils.data.TensorDataset(*next(batches(1)))
    loader = torch.utils.data.DataLoader(held_out, batch_size=2)
    with Recorder("x", probe=False) as recorder:
        for index, (inputs, target) in enumerate(batches(count)):
            optimizer.zero_grad()
            if teach:
                with torch.no_grad():
                    teacher(inputs)
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if (index + 1) % every == 0 or index + 1 == count:
                model.eval()
                for rows, wanted in list(loader)[:size]:
                    with torch.no_grad():
                        F.mse_loss(model(rows), wanted)
                model.train()
    return [(e.step, e.passes) for e in recorder.trace if isinstance(e, Evaluation)]


def test_evaluations_of_a_long_run_are_seen_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is, though no step is watched where it comes; a checkpoint's pass is none."""
    monkeypatch.setattr(window, "DENSE", 16)
    steps = [(step, 2) for step in (*range(19, 110, 19), 110)]
    assert evaluated(110, 19, 2) == steps


def test_passes_without_a_graph_in_each_step_are_seen_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A teacher does not keep a long run from being thinned out."""
    monkeypatch.setattr(window, "DENSE", 16)
    seen = evaluated(160, 1000, teach=True)
    late = [step for step, _ in seen if 32 <= step < 160]
    assert len(late) <= 8 + 8 + 8  # a watched step in 16, another between two, and the first


def test_two_optimizers_in_turns_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a long run is not the steps of one of them."""
    monkeypatch.setattr(thinning, "FULL", 16)
    steps = record(adversaries, 120)
    counts = Counter(step.optimizer for step in steps)
    assert set(counts) == {"Adam", "Adam#2"}
    assert max(counts.values()) < 120
    assert min(counts.values()) > max(counts.values()) / 2


def test_a_model_of_an_earlier_fold_is_let_go() -> None:
    """Of a training that is over, with its optimizer, nothing stays in memory."""

    def fold() -> tuple[weakref.ref, ...]:
        """Train one model, and forget it."""
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        for inputs, target in batches(12):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
        return tuple(weakref.ref(parameter) for parameter in model.parameters())

    with Recorder("folds") as recorder:
        folds = [fold() for _ in range(3)]
        gc.collect()
        left = [parameter() for parameters in folds for parameter in parameters]
    assert left == [None] * len(left)
    received = [event.received for event in recorder.trace if isinstance(event, Parameter)]
    assert received == [12] * len(received)
    assert received


def test_what_no_optimizer_held_is_let_go() -> None:
    """Nor does a layer stay that was left out, or learned by hand, with the gradients it has."""

    def fold(place: int) -> weakref.ref:
        """Train a part of one model, by an optimizer or by hand, and forget it."""
        model = network()
        head = [*model.parameters()][-1]
        optimizer = torch.optim.Adam([*model.parameters()][:-1])
        for inputs, target in batches(12):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if place % 2:
                head.data -= 0.01 * head.grad
        return weakref.ref(head)

    with Recorder("folds") as recorder:
        heads = [fold(place) for place in range(4)]
        network()(torch.randn(2, 4))
        gc.collect()
        left = [head() for head in heads]
    assert left == [None] * 4
    last = [event for event in recorder.trace if isinstance(event, Parameter) and not event.held]
    assert max(event.received for event in last) > 10  # it is told of nevertheless
