"""Target networks: whether they are called."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


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
