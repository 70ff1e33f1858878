"""Parameters and trainings that are unlike others are recorded without a fault."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network, scaled
from trainguard.events.loop import Parameter
from trainguard.observe.loop.recorder import Recorder


def told(train, *arguments, **options) -> dict[str, Parameter]:
    """Record a training and return what became of its parameters."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        kept = train(*arguments, **options)
    del kept
    return {event.name: event for event in recorder.trace if isinstance(event, Parameter)}


def fit(model: nn.Module, optimizer, steps: int = 4) -> nn.Module:
    """Train a model on rows of four numbers."""
    for inputs, target in batches(steps):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
    return model


def test_sparse_gradients() -> None:
    """An embedding with sparse gradients moves in the rows that were met."""

    def train() -> nn.Module:
        """Train an embedding of which one row is used."""
        model = nn.Embedding(1000, 1, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.tensor([7, 7])).sum().backward()
            optimizer.step()
        return model

    (rows,) = told(train).values()
    assert rows.moved
    assert rows.received == 4
    assert rows.gradient == pytest.approx(2.0)


def test_lazy_modules() -> None:
    """Their parameters are met once they have a shape."""

    def train() -> nn.Module:
        """Train a layer that learns its input size from the first batch."""
        model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.Linear(3, 1))
        model(torch.randn(2, 4))
        return fit(model, torch.optim.SGD(model.parameters(), lr=0.05))

    seen = told(train)
    assert [p.elements for p in seen.values()] == [12, 3, 3, 1]
    assert all(p.moved and p.received == 4 for p in seen.values())


def test_a_lazy_module_that_is_never_used() -> None:
    """It has no shape to the end, and no event."""

    def train() -> nn.Module:
        """Keep a branch that is not called."""
        model = nn.ModuleDict({"used": network(), "unused": nn.LazyLinear(3)})
        model.forward = model["used"].forward
        return fit(model, torch.optim.SGD(model["used"].parameters(), lr=0.05))

    assert len(told(train)) == 4


def test_integers_and_complex_numbers() -> None:
    """Frozen integer weights stay; complex ones learn."""

    class Mixed(nn.Module):
        """Layers of several dtypes."""

        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
            self.phase = nn.Parameter(torch.full((4,), 0.5, dtype=torch.complex64))
            self.short = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
            self.none = nn.Parameter(torch.ones(0))

        def forward(self, inputs):
            """Combine them all."""
            each = inputs * self.codes * self.phase * self.short
            return each.real.sum(1, keepdim=True) + self.none.sum()

    def train() -> nn.Module:
        """Train all of them."""
        model = Mixed()
        return fit(model, torch.optim.SGD(model.parameters(), lr=0.05))

    seen = told(train)
    assert {name: p.moved for name, p in seen.items()} == {
        "Mixed.codes": False,
        "Mixed.phase": True,
        "Mixed.short": True,
        "Mixed.none": False,
    }
    assert not seen["Mixed.codes"].trainable


def test_parameters_on_the_meta_device_count_as_moved() -> None:
    """Nothing is known of them, so that nothing is said against them."""

    def train() -> nn.Module:
        """Keep a part on the meta device."""
        model = network()
        model.add_module("later", nn.Linear(3, 3, device="meta"))
        model.forward = lambda inputs: model[2](model[1](model[0](inputs)))
        return fit(model, torch.optim.SGD(list(model.parameters())[:4], lr=0.05))

    seen = told(train)
    assert [p.moved for p in seen.values()] == [True] * 6
    assert [p.called for p in seen.values()] == [True] * 4 + [False] * 2


def test_what_changes_its_dtype_has_moved() -> None:
    """A model that is turned into another precision on the way is not compared by bits."""

    def train() -> nn.Module:
        """Train in double precision in the end."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        fit(model, optimizer, 2)
        model.double()
        for inputs, target in batches(2):
            F.mse_loss(model(inputs.double()), target.double()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    assert all(p.moved for p in told(train).values())


def test_an_optimizer_that_is_deleted_on_the_way() -> None:
    """Another one takes over; the parameters keep their history."""

    def train() -> nn.Module:
        """Warm up with one optimizer and go on with another."""
        model = network()
        first = torch.optim.SGD(model.parameters(), lr=0.5)
        fit(model, first, 3)
        del first
        gc.collect()
        return fit(model, torch.optim.AdamW(model.parameters(), lr=0.01), 3)

    for p in told(train).values():
        assert p.held
        assert p.moved
        assert p.received == 6
        assert p.rate == 0.5


def test_steps_without_gradients() -> None:
    """Neither backward nor a gradient: nothing moves, and nothing fails."""

    def train() -> nn.Module:
        """Step without a loss."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for inputs, _ in batches(4):
            model(inputs)
            optimizer.step()
        return model

    seen = told(train)
    assert len(seen) == 4
    assert not any(p.moved or p.received or p.gradient for p in seen.values())


def test_an_optimizer_that_never_steps_holds_its_own() -> None:
    """Its parameters are in the model, and nobody moves them."""

    def train() -> tuple[object, ...]:
        """Forget to step the optimizer of the head."""
        model = network()
        body = torch.optim.SGD(model[0].parameters(), lr=0.5)
        head = torch.optim.SGD(model[2].parameters(), lr=0.5)
        return fit(model, body), head

    seen = told(train)
    assert [(p.held, p.moved) for p in seen.values()] == [(True, True)] * 2 + [(True, False)] * 2


def test_a_scaler_that_skips_steps() -> None:
    """Gradients that are not finite say nothing of the largest norm."""
    for p in told(scaled, 6, scale=2.0**127).values():
        assert p.gradient < 1e6


def test_a_module_that_cannot_be_copied_or_hashed() -> None:
    """Nothing is asked of modules that they might refuse."""

    class Stubborn(nn.Module):
        """Refuses to be copied, compared and hashed."""

        __hash__ = None

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def __deepcopy__(self, memo):
            """Refuse."""
            raise TypeError("no copies")

        def __eq__(self, other):
            """Refuse."""
            raise TypeError("no comparison")

        def forward(self, inputs):
            """Run the layer."""
            return self.layer(inputs)

    def train() -> nn.Module:
        """Train it."""
        model = Stubborn()
        return fit(model.layer, torch.optim.SGD(model.layer.parameters(), lr=0.05))

    assert all(p.moved for p in told(train).values())


def test_a_module_with_methods_of_its_own() -> None:
    """Some authors give `parameters` and `modules` another meaning."""

    class Own(nn.Module):
        """Lists its parameters itself."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def parameters(self):
            """Return a list, and take no argument."""
            return list(self.inner.parameters())

        def forward(self, inputs):
            """Run the network."""
            return self.inner(inputs)

    def train() -> nn.Module:
        """Train it."""
        model = Own()
        return fit(model, torch.optim.SGD(model.parameters(), lr=0.05))

    seen = told(train)
    assert len(seen) == 4
    assert all(p.moved and p.called and p.received == 4 for p in seen.values())


def test_distributed_tensors(tmp_path) -> None:
    """A parameter that is a DTensor is read where it is: in its local part."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch was built without torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensor, "DeviceMesh"):
        pytest.skip("distributed tensors are public from torch 2.5 on")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = tensor.DeviceMesh("cpu", [0])

        def train() -> nn.Module:
            """Train a layer whose parameters are distributed over one process."""
            model = nn.Linear(4, 1)
            tensor.distribute_module(model, mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for inputs, _ in batches(3):
                optimizer.zero_grad()
                spread = tensor.distribute_tensor(inputs, mesh, [tensor.Replicate()])
                model(spread).sum().backward()
                optimizer.step()
            return model

        seen = told(train)
    finally:
        dist.destroy_process_group()
    assert [(p.moved, p.received) for p in seen.values()] == [(True, 3)] * 2
    assert all(p.gradient > 0 for p in seen.values())
