"""The simulated accelerator is unlike the CPU where a real one is, and counts what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.machine import Machine, attempt
from tests.simulated.device import Counts, counts


@pytest.mark.parametrize("other", ["cpu", "sim:0"])
def test_devices_do_not_mix(other):
    """An operation on tensors of two devices is refused, in the words of torch."""
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3, 3, device="sim:1") @ torch.ones(3, 3, device=other)


def test_each_device_has_its_own_random_numbers(device):
    """What is drawn on one device moves neither the other's stream nor the CPU's."""
    torch.manual_seed(0)
    first = torch.rand(3, device=device)
    others = [d for d in ("cpu", "sim:0", "sim:1") if d != device]
    drawn = [torch.rand(3, device=other).tolist() for other in others]
    assert drawn == [first.tolist()] * 2
    assert torch.rand(3, device=device).tolist() != first.tolist()


def test_memory_is_counted(device):
    """What is in use, the peak and the number of allocations are counted for each device."""
    other = "sim:0" if device == "sim:1" else "sim:1"
    before = torch.sim.memory_allocated(device)
    elsewhere = torch.sim.memory_allocated(other)
    torch.sim.reset_peak_memory_stats(device)
    made = torch.sim.memory_stats(device)["allocation.all.allocated"]
    kept = torch.ones(1000, device=device)
    passing = kept * 2
    del passing
    assert torch.sim.memory_allocated(device) - before == 4000
    assert torch.sim.max_memory_allocated(device) - before == 8000
    assert torch.sim.memory_stats(device)["allocation.all.allocated"] - made == 2
    assert torch.sim.memory_allocated(other) == elsewhere


@pytest.mark.parametrize(
    ("read", "waited"),
    [
        (lambda x: x.sum().item(), Counts(scalars=1)),
        (lambda x: float(x[0]), Counts(scalars=1)),
        (lambda x: x.tolist(), Counts(fetched=1)),
        (lambda x: x.cpu(), Counts(fetched=1)),
        (lambda x: x.copy_(torch.zeros(4)), Counts(sent=1)),
        (lambda x: x[x > 0], Counts(shapes=1)),
        (lambda x: x.nonzero(), Counts(shapes=1)),
        (lambda x: torch.equal(x, x), Counts(shapes=1)),
        (lambda x: (x * 2 + 1).softmax(0).sum(), Counts()),
        (lambda x: x.to("sim:0"), Counts()),
    ],
    ids=["item", "float", "tolist", "cpu", "copy", "mask", "nonzero", "equal", "compute", "move"],
)
def test_waiting_is_counted(read, waited):
    """Reading values waits for the device, computing does not."""
    values = torch.ones(4, device="sim:1")
    before = counts()
    read(values)
    assert counts() - before == waited


def test_a_copy_that_is_not_waited_for_is_not_there(device):
    """What goes to the host without a wait is stale until something else waits."""
    host, values = torch.zeros(3).pin_memory(), torch.ones(3, device=device)
    before = counts()
    host.copy_(values, non_blocking=True)
    values += 1  # comes after it, on the device
    assert counts() == before
    assert host.tolist() == [0, 0, 0]
    torch.sim.synchronize()
    assert host.tolist() == [1, 1, 1]


def test_a_batch_that_is_written_while_it_is_copied_is_found(device):
    """A pinned buffer may be filled again only after something has waited."""
    before, batch = counts(), torch.zeros(4).pin_memory()
    for waits in (True, False):
        batch.to(device, non_blocking=True)
        if waits:
            torch.sim.synchronize()
        batch += 1
    torch.sim.synchronize()
    assert (counts() - before).races == 1


@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_compute_what_the_cpu_does(make, device):
    """Forward and backward of the fused cells agree with the CPU's."""
    torch.manual_seed(0)
    layer, values = make(3, 4), torch.randn(5, 2, 3)
    layer(values)[0].sum().backward()
    there = make(3, 4).to(device)
    there.load_state_dict(layer.state_dict())
    there(values.to(device))[0].sum().backward()
    for own, other in zip(layer.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad.cpu())


def test_without_a_compiler_it_is_skipped_in_words(tmp_path):
    """Where it was never built and cannot be, the tests say what is missing, and none fails."""
    alone = {"PATH": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    chosen = ("-q", "-rs", "-p", "no:cacheprovider", "tests/simulated/test_moved_batches.py")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={name: own for name, own in os.environ.items() if name != "CXX"} | alone,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout
    assert "needs c++ and ninja, to be built once" in ended.stdout
    assert "passed" not in ended.stdout


def test_the_page_is_made_of_its_figures(tmp_path):
    """Every part is on it, and each number is one that was measured on a real device."""
    kept = Path(gpu.__file__).parents[1]
    figures = json.loads((kept / "GPU.json").read_text())
    assert not figures["conditions"]["simulated"]
    assert {*figures["parts"]} == {part.__name__ for part in gpu.PARTS}
    gpu.write(figures, tmp_path)
    assert (tmp_path / "GPU.md").read_text() == (kept / "GPU.md").read_text()


def test_measuring_goes_on_after_a_failure(tmp_path):
    """A part of `nox -s gpu` that fails is a row of its own, and what comes after is measured."""

    def fails(_machine):
        """Fail after a row."""
        yield {"row": 1}
        raise RuntimeError("no such kernel")

    def works(_machine):
        """Measure."""
        yield attempt({"row": 2}, lambda: {"ratio": 1 / 0})
        yield {"row": 3}

    with patch.object(gpu, "PARTS", (fails, works)):
        gpu.measure(Machine("sim", simulated=True), tmp_path, ["fails"])
        found = gpu.measure(Machine("sim", simulated=True), tmp_path, ["works"])
    assert found["fails"] == [{"row": 1}, {"failed": "RuntimeError: no such kernel"}]
    assert found["works"][0]["failed"].startswith("ZeroDivisionError")
    assert found["works"][1] == {"row": 3}
    assert json.loads((tmp_path / "GPU.json").read_text())["parts"] == found
    assert "A dry run" in (tmp_path / "GPU.md").read_text()
