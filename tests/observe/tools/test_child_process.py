"""Children of a process whose autograd may or may not have threads."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from trainguard.observe.tools.child_process import fork_child, forks, go_backward

FIRST = {
    "a fake tensor": "from trainguard.observe.memory.fake import fake_tensors\n"
    "with fake_tensors(): pass",
    "a fake tensor of torch's": "from torch._subclasses.fake_tensor import FakeTensorMode\n"
    "with FakeTensorMode(): pass",
}
PREDICT = """
import torch
{first}
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.memory.training import Training
made = Training(
    lambda: torch.nn.Linear(256, 256),
    lambda: torch.zeros(1, 256),
    lambda module, batch: (module(batch).sum(), None),
    torch.optim.SGD,
)
for _ in range(2):
    assert predict_step(lambda: made, "cuda").timeline.peak().total > 2 * 256 * 256 * 4
    module = torch.nn.Linear(2, 2)
    module(torch.ones(2)).sum().backward()
    assert type(module.weight.grad) is torch.Tensor
"""


@pytest.mark.parametrize("first", FIRST)
def test_a_step_is_predicted_whatever_came_before(first: str) -> None:
    """PyTorch pretends to have a device once a tensor was fake, which may keep children from it."""
    code = PREDICT.format(first=FIRST[first])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_grad_mode_and_gradients_are_as_they_were() -> None:
    """Asking makes a backward pass of its own, also where gradients are switched off."""
    with torch.no_grad():
        go_backward()
        forks()
        assert not torch.is_grad_enabled()


def test_a_warning_that_was_shown_is_not_shown_again() -> None:
    """A fork does not make Python forget which warnings it has told of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn("once", UserWarning, stacklevel=1)
            os.waitpid(fork_child(lambda: 0), 0)
    assert [str(one.message) for one in told] == ["once"]
