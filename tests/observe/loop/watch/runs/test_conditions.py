"""What the numbers of a run depend on: the header of its trace."""

import torch

from tests.observe.loop.trainings import plain
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.isolation import isolate


def conditions(train) -> dict:
    """Return the header of a recorded training."""
    recorder = Recorder("run", probe=False)
    with isolate(0), recorder:
        train()
    return dict(recorder.trace.conditions)


def test_a_plain_run() -> None:
    """Device, dtype and threads; no flag is on."""
    found = conditions(lambda: plain(2))
    told = {name: found[name] for name in ("device", "dtype", "threads", "deterministic")}
    assert told == {
        "device": "cpu",
        "dtype": ("float32",),
        "threads": 1,
        "deterministic": ("none",),
    }
    assert found["hardware"]


def test_flags_and_dtypes_are_told() -> None:
    """As they were at the first step, whatever comes after it."""

    def train() -> None:
        """Train in float64, deterministically."""
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("high")
        plain(2)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")

    found = conditions(train)
    assert found["dtype"] == ("float64",)
    assert found["deterministic"] == ("algorithms", "tf32")


def test_autocast_is_told() -> None:
    """Where a step is made inside of it."""

    def train() -> None:
        """Train with everything inside autocast."""
        with torch.autocast("cpu", torch.bfloat16):
            plain(2)

    assert conditions(train)["dtype"] == ("float32", "autocast-bfloat16")


def test_a_run_without_a_step_has_none() -> None:
    """There is nothing that they could be of."""
    assert "device" not in conditions(lambda: None)


def test_arguments_and_the_environment_without_secrets(monkeypatch) -> None:
    """What a script was called with, and the variables that torch computes by."""
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "3", "--api-key", "abc"])
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("ACCELERATE_TOKEN", "abc")
    found = conditions(lambda: plain(2))
    assert found["arguments"] == ("--lr", "3", "--api-key", "***")
    told = dict(found["environment"])
    assert told["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "ACCELERATE_TOKEN" not in told
