"""The witness: what a child tells of its step."""

import multiprocessing
import os

import pytest
import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit
from trainguard.observe.loop.counterfactual.witness import Witness, tell_end
from trainguard.observe.loop.recorder import Recorder


def test_gradients_of_this_run_alone() -> None:
    """What an optimizer of an earlier training has is none of them."""
    left = nn.Linear(3, 3)
    left.weight.grad = torch.ones(3, 3)
    kept = torch.optim.SGD(left.parameters(), lr=0.1)
    with Recorder("x", probe=False) as recorder:
        net = nn.Linear(6, 1, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        held = list(Witness(recorder, Exit(-1), net)._held())
    assert len(kept.param_groups) == 1
    assert [gradient.numel() for gradient in held] == [6]


def test_the_end_of_a_training_is_told_in_words() -> None:
    """Of the user's code, and of multiprocessing where a worker is another process's child."""
    assert tell_end(None) == tell_end(SystemExit(4)) == "the training ended"
    assert tell_end(RuntimeError("no such queue")) == "RuntimeError: no such queue"
    torchs = RuntimeError("open file failed with strerror: Permission denied")
    assert (
        tell_end(torchs)
        == tell_end(PermissionError(13, "no"))
        == ("it writes a file, which a step that is only asked may not")
    )
    worker = multiprocessing.Process(target=print)
    worker._parent_pid = os.getpid() + 1
    with pytest.raises(AssertionError) as refused:
        worker.is_alive()
    assert tell_end(refused.value) == (
        "it needs a batch that no worker of its loader has brought yet"
    )
