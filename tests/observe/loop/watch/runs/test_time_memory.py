"""The clock and the memory of steps."""

import json
import subprocess
import sys

import pytest
import torch

from tests.observe.loop.trainings import plain
from trainguard.events.loop import Step
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.runs import time_memory

CHILD = """
import json, resource
from trainguard.observe.loop.watch.runs import time_memory
print(json.dumps([time_memory._peak(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def memory() -> list[int]:
    """Return the memory of the steps of a recorded run."""
    with Recorder("x") as recorder:
        plain(3)
    return [event.memory for event in recorder.trace if isinstance(event, Step)]


@pytest.mark.skipif(
    not time_memory._STATUS.exists(), reason="only Linux tells the peak of one process"
)
def test_the_peak_is_that_of_this_process() -> None:
    """A process that is started by a large one does not have the size of that."""
    large = torch.zeros(2**28)  # 1 GiB, all of it touched: more than torch with CUDA by itself
    large += 1
    run = subprocess.run(
        [sys.executable, "-c", CHILD], check=True, capture_output=True, text=True, timeout=120
    )
    own, counted = json.loads(run.stdout)
    assert own <= counted
    assert own < large.nbytes


def test_the_peak_grows_with_what_is_held() -> None:
    """The peak is at least what a tensor takes that was there."""
    before = memory()[-1]
    held = torch.ones(2**24)
    assert memory()[-1] >= max(before, held.nbytes)


def test_the_memory_is_that_of_the_device(monkeypatch) -> None:
    """Each is asked by its own module, and the host never stands for another one."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7 + device.index)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    names = ("cuda:1", "mps", "meta")
    assert [time_memory._in_use(torch.device(name)) for name in names] == [8, 5, 0]


def test_other_systems_are_asked_in_their_way(monkeypatch, tmp_path) -> None:
    """Where there is no file to read, the system's own count is taken."""
    monkeypatch.setattr(time_memory, "_STATUS", tmp_path / "none")
    assert min(memory()) > 2**20
