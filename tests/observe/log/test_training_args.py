"""The training_args.bin beside a log: its settings are read, and nothing in it is run."""

import enum
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from trainguard.observe.log.configuration import read_arguments, settings_beside


class Strategy(str, enum.Enum):  # noqa: UP042 as transformers has it
    """How often something is done."""

    STEPS = "steps"


@dataclass
class Arguments:
    """What a Trainer is told, in small."""

    learning_rate: float = 3e-4
    warmup_steps: int = 100
    bf16: bool = False
    hub_token: str = "hf_abc"
    save_strategy: Strategy = Strategy.STEPS
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    weights: torch.Tensor = field(default_factory=lambda: torch.zeros(3))


@dataclass
class Harmful:
    """What runs a command where it is unpickled as usual."""

    path: Path

    def __reduce__(self) -> object:
        """Make a folder."""
        return os.mkdir, (str(self.path),)


def test_plain_settings_are_read(tmp_path) -> None:
    """Numbers, texts and enumerations; secrets and tensors are left out."""
    torch.save(Arguments(), tmp_path / "training_args.bin")
    told = dict(settings_beside([tmp_path / "trainer_state.json"]))
    assert told["learning_rate"] == "0.0003"
    assert {name: told[name] for name in ("warmup_steps", "bf16", "save_strategy")} == {
        "warmup_steps": "100",
        "bf16": "False",
        "save_strategy": "steps",
    }
    assert not {"hub_token", "weights"} & set(told)


def test_no_code_is_run(tmp_path) -> None:
    """A pickle that would make a folder makes none."""
    torch.save(Harmful(tmp_path / "made"), tmp_path / "training_args.bin")
    assert not [*read_arguments(tmp_path / "training_args.bin")]
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text"])
def test_what_is_no_archive_says_nothing(tmp_path, content: bytes) -> None:
    """A damaged file is passed over."""
    (tmp_path / "training_args.bin").write_bytes(content)
    assert settings_beside([tmp_path / "log.csv"]) == ()
