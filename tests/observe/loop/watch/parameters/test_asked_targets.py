"""Target networks: whether they are called."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


@pytest.mark.parametrize("whole", [True, False])
def test_compiled_targets_are_asked(whole: bool) -> None:
    """By what a compiler has made of them, or by themselves, compiled in place."""
    model = network()
    target = copy.deepcopy(model)
    ask = torch.compile(target, backend="eager") if whole else target
    if not whole:
        target.compile(backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Recorder("x") as recorder:
        for step, (inputs, _) in enumerate(batches(20)):
            with torch.no_grad():
                goals = ask(inputs)
            optimizer.zero_grad()
            F.mse_loss(model(inputs), goals + 1).backward()
            optimizer.step()
            if step % 4 == 3:
                target.load_state_dict(model.state_dict())
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unasked"]
    assert "unasked" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize("ask", [None, lambda copied, x: copied(x), lambda copied, x: copied[0](x)])
@pytest.mark.parametrize("called", ["target", "best"])
def test_targets_that_are_never_asked(called: str, ask) -> None:
    """They follow another module, have the name of a target, and no part of them is called."""
    model = network()
    holder = SimpleNamespace(**{called: copy.deepcopy(model)})
    copied = getattr(holder, called)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Recorder("x") as recorder:
        for step, (inputs, target) in enumerate(batches(40)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if step % 4 == 3:
                copied.load_state_dict(model.state_dict())
            if ask is not None and step > 20:
                ask(copied, inputs)
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unasked"]
    assert len(found) == (called == "target" and ask is None)
    assert ("unasked" in recorder.trace.conditions["looked"]) == (called == "target")
