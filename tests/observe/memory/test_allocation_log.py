"""The ledger of storages, on real tensors."""

import pytest
import torch
from torch import nn

from trainguard.observe.memory.allocation_log import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    AllocationLog,
    MemoryExceeded,
)


def test_a_storage_is_entered_once() -> None:
    """Views and in-place operations add nothing to what is held."""
    with AllocationLog() as ledger:
        x = torch.zeros(256)
        x.view(16, 16).add_(1).t()
    assert [entry.size for entry in ledger.entries] == [1024]


def test_what_is_freed_is_no_longer_held() -> None:
    """A storage is let go when its last view is."""
    with AllocationLog() as ledger:
        x = torch.zeros(256)
        half = x[:128]
        del x
        held = ledger.live_bytes
        del half
    assert (held, ledger.live_bytes) == (1024, 0)


def test_a_storage_that_grows_is_followed() -> None:
    """What `resize_` adds is held from then on."""
    with AllocationLog() as ledger:
        x = torch.zeros(4)
        x.resize_(1024)
    assert ledger.live_bytes == 4096


def test_phases_are_told_apart() -> None:
    """What backward and the optimizer make is known from what the forward pass makes."""
    ledger = AllocationLog()
    module = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(module.parameters())
    with ledger.following():
        ledger.phase = FORWARD
        module(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
    phases = [entry.phase for entry in ledger.entries]
    assert phases == sorted(phases, key=[FORWARD, BACKWARD, OPTIMIZER].index)
    assert set(phases) == {FORWARD, BACKWARD, OPTIMIZER}


def test_the_module_and_the_line_are_known() -> None:
    """An entry names the module at work and the line of the caller, in backward too."""
    ledger = AllocationLog()
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with ledger.following():
        ledger.phase = FORWARD
        module(torch.zeros(2, 4)).square().sum().backward()
    made = {(entry.phase, entry.operation): entry for entry in ledger.entries}
    assert made[FORWARD, "addmm"].module == "Sequential.0"
    assert made[FORWARD, "addmm"].source.startswith(__file__)
    assert made[FORWARD, "pow"].module == ""
    assert made[BACKWARD, "tanh_backward"].module == "Sequential.1"


def test_a_real_step_is_stopped_in_time() -> None:
    """Beyond what it may take, the ledger stops a step; nothing stays entered."""
    with pytest.raises(MemoryExceeded), AllocationLog(most=1000):
        torch.zeros(1024)
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
