"""`Tensor.grad` while it is watched: what torch and its users do with it is as it was."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions
from torch.utils.checkpoint import checkpoint

from tests.observe.loop.trainings import network
from trainguard.observe.loop.recorder import Recorder


@pytest.fixture(autouse=True)
def recording():
    """Record for as long as each of these tests lasts, with gradients in question."""
    before = attributes(), set(get_default_nowrap_functions())
    with Recorder("x"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert "grad" in vars(torch.Tensor)
        yield model
    assert (attributes(), set(get_default_nowrap_functions())) == before


def attributes() -> dict:
    """Return the attributes of tensors, less what pickling remembers in a class."""
    return {name: value for name, value in vars(torch.Tensor).items() if name != "__slotnames__"}


def outcome(action, kind):
    """Return what an action on a fresh parameter does: what it raises, and the gradient after."""
    parameter = kind(torch.ones(2))
    parameter.grad = torch.full((2,), 3.0)
    try:
        action(parameter)
    except (TypeError, RuntimeError) as error:
        return type(error), str(error), parameter.grad.tolist()
    gradient = parameter.grad
    return None, "", None if gradient is None else gradient.tolist()


def remove(parameter) -> None:
    """Delete the gradient."""
    del parameter.grad


ACTIONS = {
    "tensor": lambda p: setattr(p, "grad", torch.zeros(2)),
    "none": lambda p: setattr(p, "grad", None),
    "deleted": remove,
    "of another shape": lambda p: setattr(p, "grad", torch.zeros(3)),
    "of another type": lambda p: setattr(p, "grad", torch.zeros(2, dtype=torch.float64)),
    "on another device": lambda p: setattr(p, "grad", torch.zeros(2, device="meta")),
    "itself": lambda p: setattr(p, "grad", p),
    "no tensor": lambda p: setattr(p, "grad", 3),
    "in place": lambda p: p.grad.zero_(),
}


class Tagged(torch.Tensor):
    """A subclass that does nothing of its own."""


class Counting(torch.Tensor):
    """A subclass that counts what goes through it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Count the call."""
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs)


KINDS = {
    "parameter": nn.Parameter,
    "tensor": lambda data: data.clone().requires_grad_(),
    "subclass": lambda data: data.as_subclass(Tagged).requires_grad_(),
    "parameter of a subclass": lambda data: nn.Parameter(data.as_subclass(Tagged)),
    "counting": lambda data: data.as_subclass(Counting).requires_grad_(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ACTIONS)
def test_setting_and_deleting_are_as_before(action, kind, recording) -> None:
    """Each assignment does, and each wrong one raises, what it does without a recording."""
    watched = outcome(ACTIONS[action], KINDS[kind])
    descriptor = vars(torch.Tensor)["grad"]
    del torch.Tensor.grad
    try:
        plain = outcome(ACTIONS[action], KINDS[kind])
    finally:
        torch.Tensor.grad = descriptor
    assert watched == plain


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_the_same_object(kind) -> None:
    """A gradient comes back as it was set, of its own class, also from a subclass."""
    parameter, gradient = KINDS[kind](torch.ones(2)), torch.zeros(2)
    parameter.grad = gradient
    assert parameter.grad is gradient
    assert parameter.grad is parameter.grad


def test_the_attribute_describes_itself() -> None:
    """The documentation is there, and the class has the attribute."""
    plain = torch._C.TensorBase.grad
    assert torch.Tensor.grad.__doc__ == plain.__doc__
    assert hasattr(nn.Parameter, "grad")
    assert "grad" in dir(torch.ones(1))


def test_a_function_mode_sees_the_reads(recording) -> None:
    """A mode of the user's still sees that gradients are read, and decides what they are."""

    class Instead(TorchFunctionMode):
        """Answers each read of a gradient."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            """Return a word for a gradient."""
            name = getattr(func, "__name__", "")
            return "read" if name == "__get__" else func(*args, **(kwargs or {}))

    with Instead():
        assert next(recording.parameters()).grad == "read"


def test_copies_and_files_keep_working(recording) -> None:
    """Deep copies keep gradients; pickles and saved models come back."""
    tensor = torch.ones(2, requires_grad=True)
    tensor.sum().backward()
    assert copy.deepcopy(tensor).grad.tolist() == [1.0, 1.0]
    assert len(list(copy.deepcopy(recording).parameters())) == 4
    assert pickle.loads(pickle.dumps(recording))[0].weight.equal(recording[0].weight)
    file = io.BytesIO()
    torch.save(recording, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)[0].weight.equal(recording[0].weight)


@pytest.mark.filterwarnings("ignore:`torch.cpu.amp:FutureWarning")  # checkpoints of torch 2.4
def test_transformations_keep_working(recording) -> None:
    """torch.func, checkpointing, gradcheck and fake tensors do what they do."""
    parameters = dict(recording.named_parameters())
    inputs = torch.ones(3, 4)

    def loss(values, rows):
        """Return the mean square of the outputs."""
        return torch.func.functional_call(recording, values, (rows,)).square().mean()

    gradients = torch.func.grad(loss)(parameters, inputs)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs[:, None])
    assert gradients.keys() == each.keys() == parameters.keys()
    checkpoint(recording, inputs, use_reentrant=False).square().mean().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, gradients[name])
    assert torch.autograd.gradcheck(torch.tanh, torch.ones(2, dtype=torch.float64).requires_grad_())
    with FakeTensorMode():
        fake = nn.Linear(2, 2)
        fake(torch.ones(1, 2)).sum().backward()
        assert fake.weight.grad.shape == (2, 2)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_scripts_and_graphs_keep_working(recording) -> None:
    """TorchScript, traces, exports and fx give the same outputs."""
    inputs = torch.ones(3, 4)
    expected = recording(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graphs = [torch.jit.script(recording), torch.jit.trace(recording, inputs)]
    graphs += [
        torch.fx.symbolic_trace(recording),
        torch.export.export(recording, (inputs,)).module(),
    ]
    for graph in graphs:
        torch.testing.assert_close(graph(inputs), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_may_read_gradients(backend) -> None:
    """A compiled model trains, and a compiled function that reads gradients is one graph."""
    torch.compiler.reset()
    model = network()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend, fullgraph=True)
    def norm(parameters):
        """Return the norm of the gradients."""
        return torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()

    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(compiled(torch.ones(3, 4)), torch.ones(3, 1)).backward()
        parameters = list(model.parameters())
        expected = torch.stack([p.grad.norm() for p in parameters]).norm()
        torch.testing.assert_close(norm(parameters), expected)
        optimizer.step()
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_optimizer_steps(backend) -> None:
    """An optimizer whose step is compiled reads gradients inside the graph."""
    torch.compiler.reset()
    torch.manual_seed(0)  # Adam magnifies what is rounded off of a gradient near zero
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1)) for m in (model, twin)]
    step = torch.compile(optimizers[0].step, backend=backend)
    for _ in range(3):
        for own in (model, twin):
            own.zero_grad()
            F.mse_loss(own(torch.ones(3, 4)), torch.ones(3, 1)).backward()
        step()
        optimizers[1].step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.compiler.reset()
