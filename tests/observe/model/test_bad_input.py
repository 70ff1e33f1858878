"""Models that cannot be observed: each is told in a sentence of its own, with the way out."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import trainguard as tg
from trainguard.core.errors import DeclarationError, SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass, Trace
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)


def trace(model: tg.Model, probe: str = "initial") -> Trace[Pass]:
    """Observe a model with one probe."""
    return observe(model, "cpu", "float32", Settings()).trace(probe)


def fault(model: tg.Model, probe: str = "initial") -> SubjectError:
    """Return why a model cannot be observed."""
    with pytest.raises(SubjectError) as raised:
        trace(model, probe)
    return raised.value


class Head(nn.Module):
    """A linear layer whose output goes through a function."""

    def __init__(self, function: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Any) -> Any:
        """Return what the function makes of the layer's output."""
        return self.function(self.layer(x))


class InAList(nn.Module):
    """A model that hides its layers from PyTorch in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, x: Any) -> Any:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x


class Spare(Head):
    """A model with a lazy layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.LazyLinear(3)


def test_a_model_without_parameters() -> None:
    """Layers in a list are not registered; that is the usual reason."""
    raised = fault(tg.Model(InAList, x=X))
    assert raised.sentence == "it has no parameters, so there is nothing to train"
    assert "nn.ModuleList" in raised.remedy


def test_a_model_on_a_device_without_values() -> None:
    """Parameters on the meta device have no values."""
    with torch.device("meta"):
        model = Head()
    raised = fault(tg.Model(model, x=X))
    assert raised.sentence == "its layer.weight is on the meta device, where nothing has a value"


def test_a_lazy_layer_that_is_never_called() -> None:
    """It has no shape, and nothing will give it one."""
    raised = fault(tg.Model(Spare, x=X))
    assert raised.sentence == "its lazy spare.weight is still without a shape after a call"


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (lambda: None, "None"),
        (lambda: Head, "the class Head"),
        (lambda: (Head(), 3), "the tuple"),
        (lambda: torch.zeros(3), "a tensor of float32"),
    ],
)
def test_a_factory_that_returns_no_module(built: Any, words: str) -> None:
    """What came instead is said."""
    raised = fault(tg.Model(built, x=X))
    assert raised.sentence.startswith(f"its factory returned {words}")
    assert raised.sentence.endswith(", which is no nn.Module")


def test_a_factory_that_raises() -> None:
    """Its own exception is the cause, and keeps its traceback."""
    raised = fault(tg.Model(lambda: {}["width"], x=X))
    assert raised.sentence == "it raised KeyError: 'width'"
    assert isinstance(raised.__cause__, KeyError)


def test_a_forward_that_raises() -> None:
    """The call that does so is shown."""
    raised = fault(tg.Model(Head, x=tg.real("B 5", -1, 1)))
    assert raised.sentence.startswith("it raised RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be mult" in raised.sentence  # torch 2.15 names addmm first
    assert raised.call == "Head()(x=torch.empty(4, 5).uniform_(-1, 1))"


def test_a_loss_that_raises() -> None:
    """The loss is the team's code as well."""
    model = tg.Model(Head, x=X, target=X, loss=nn.functional.l1_loss)
    assert "must match the size" in fault(model).sentence


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda y: None, "returned None, with no floating-point tensor in it"),
        (lambda y: y.argmax(-1), "returned a tensor of int64, with no floating-point tensor in it"),
        (lambda y: "fine", "returned the str 'fine', with no floating-point tensor in it"),
        (lambda y: {"label": y.argmax(-1)}, "returned the dict {'label'"),
    ],
)
def test_a_forward_without_an_output(function: Any, words: str) -> None:
    """There must be something to look at."""
    assert words in fault(tg.Model(Head, x=X, arguments={"function": function})).sentence


def test_a_loss_that_is_no_tensor() -> None:
    """A loss of .item() has no gradient."""
    raised = fault(tg.Model(Head, x=X, loss=lambda output: output.mean().item()))
    assert raised.sentence.startswith("its loss returned the float ")


def test_an_input_that_a_built_model_does_not_take() -> None:
    """A function that builds tells only when it has built."""
    raised = fault(tg.Model(partial(Head), x=X, xs=X, name="head"))
    assert raised.sentence == "head takes no input 'xs'"
    assert raised.remedy == "Did you mean 'x'?"


def test_an_input_that_a_built_model_needs() -> None:
    """An input that forward cannot be called without is asked for."""
    raised = fault(tg.Model(lambda: nn.Bilinear(4, 4, 1), input1=X, name="pair"))
    assert (
        raised.sentence == "forward of pair needs an input 'input2', which tg.Model is not told of"
    )


class Unlearnable(torch.autograd.Function):
    """A function whose backward was never written."""

    @staticmethod
    def forward(_context: Any, y: Any) -> Any:
        """Return twice the input."""
        return 2 * y

    @staticmethod
    def backward(_context: Any, _gradient: Any) -> Any:
        """Raise."""
        raise NotImplementedError("soon")


def test_a_backward_that_raises() -> None:
    """It is the team's code too, and its outputs can be judged all the same."""
    model = tg.Model(Head, x=X, arguments={"function": Unlearnable.apply})
    raised = fault(model, "backward")
    assert raised.sentence == "its backward pass raised NotImplementedError: soon"
    assert isinstance(raised.__cause__, NotImplementedError)
    assert len(trace(model)) > 0


def test_outputs_that_are_detached() -> None:
    """Nothing can be learned from them."""
    raised = fault(tg.Model(Head, x=X, arguments={"function": torch.detach}), "backward")
    assert raised.sentence.startswith("its outputs are detached from its parameters")


def test_a_module_that_cannot_be_copied() -> None:
    """A factory is the way out."""
    model = Head()
    model.cache = model.layer(torch.zeros(1, 4))  # a tensor with a graph
    raised = fault(tg.Model(model, x=X))
    assert raised.sentence.startswith("it cannot be copied: RuntimeError")
    assert "function that builds it" in raised.remedy


def test_a_model_that_hangs() -> None:
    """It is stopped where its time is over."""
    raised = fault(
        tg.Model(Head, x=X, timeout=0.2, arguments={"function": lambda y: time.sleep(9)})
    )
    assert raised.sentence.startswith("it was still running after 0.2 seconds")


@pytest.mark.parametrize(
    ("promised", "words"),
    [
        ({"frozen": "encoder.*"}, "its frozen names 'encoder.*', which it does not have"),
        ({"unused": ("layer.bias", "head")}, "its unused names 'head', which it does not have"),
        ({"components": "means"}, "its components name 'means', which is no output and no param"),
        ({"components": {"output": 3}}, "its components are along dimension 3 of a tensor of 2"),
        ({"initial_range": {"mean": (0, 1)}}, "its initial_range names 'mean', which it does not"),
        ({"classes": 3}, "a loss before training is promised, and there is none"),
    ],
)
def test_a_promise_about_what_is_not_there(promised: Any, words: str) -> None:
    """A glob or a name that fits nothing would promise nothing."""
    probe = "initial" if {"initial_range", "classes"} & set(promised) else "backward"
    assert fault(tg.Model(Head, x=X, **promised), probe).sentence.startswith(words)


def test_a_model_of_which_nothing_is_trained() -> None:
    """Its gradients are not judged, and its outputs are."""
    model = tg.Model(Head().requires_grad_(False), x=X)
    with pytest.raises(Unjudged, match="no parameter of the model is trained"):
        trace(model, "backward")
    assert len(trace(model)) > 0


def test_an_unknown_probe() -> None:
    """A team's own invariant may misspell its probe."""
    told = "no probe 'initail' of a model. Did you mean 'initial'"
    with pytest.raises(DeclarationError, match=told):
        trace(tg.Model(Head, x=X), "initail")


def test_a_fault_of_ours_is_not_the_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our own code raises inside a call, it stays what it is."""
    monkeypatch.setattr("trainguard.observe.model.initial._is_plain", None)
    model = tg.Model(Head, x=X, target=tg.integer("B", 0, 2), loss=nn.CrossEntropyLoss())
    with pytest.raises(TypeError):
        trace(model)
