"""A loss of torch is watched, and stays the object that others hold."""

import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trainguard as tg
from tests.observe.loop.attributes import attributes, places
from tests.observe.loop.trainings import plain
from trainguard.observe.loop.recorder import Recorder

HELD = F.mse_loss
STATE = ("__code__", "__defaults__", "__kwdefaults__", "__dict__", "__doc__", "__name__")


def state() -> list[object]:
    """Return what makes a loss function what it is."""
    return [dict(v) if isinstance(v := getattr(HELD, n), dict) else v for n in STATE]


def test_a_loss_is_what_it_was() -> None:
    """It is the object that somebody took before, with its signature, and pickles as it."""
    net, was = nn.Linear(4, 1), state()
    net.loss = F.mse_loss
    signature = inspect.signature(HELD)
    with tg.record():
        assert F.mse_loss is HELD
        assert inspect.signature(F.mse_loss) == signature
        torch.save(net, io.BytesIO())
        assert pickle.loads(pickle.dumps(HELD)) is HELD
    assert state() == was


def test_a_loss_that_was_taken_before_is_watched() -> None:
    """A reference in a default or an object leads to the same function."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            HELD(net(torch.randn(8, 4)), torch.zeros(8, 1), reduction="mean").backward()
            optimizer.step()
    terms = [event for event in recorder.trace if type(event).__name__ == "Term"]
    assert [(term.function, term.calls) for term in terms] == [("mse_loss", 3)]


def test_an_error_of_a_loss_is_the_users() -> None:
    """A wrong call raises what it would have raised."""
    with Recorder("x"), pytest.raises(TypeError, match="missing 1 required positional argument"):
        F.mse_loss(torch.zeros(2))


@pytest.mark.parametrize("order", ["nested", "overlapping"])
def test_recordings_that_overlap_leave_nothing(order: str) -> None:
    """Whichever ends first, all is put back once both have ended."""
    plain(1)  # torch itself replaces the step of an optimizer that is made for the first time
    where = places()
    own, was = attributes(where), state()
    first, second = Recorder("a"), Recorder("b")
    first.__enter__()
    second.__enter__()
    plain(2)
    (second if order == "nested" else first).__exit__(None, None, None)
    plain(3)
    (first if order == "nested" else second).__exit__(None, None, None)
    after = attributes(where)
    assert [key for key in own if after.get(key) is not own[key]] == []
    assert state() == was
    assert {first.steps, second.steps} == ({2, 5})


def test_a_recording_is_entered_once() -> None:
    """The same object entered twice is refused in words, and goes on as it was."""
    with tg.record("x") as recording:
        with pytest.raises(RuntimeError, match="entered before"):
            recording.__enter__()
        plain(2)
    assert recording.trace.conditions["steps"] == 2
