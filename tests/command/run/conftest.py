"""A folder with a script that trains, and `trainguard run` there, as a user runs it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Ended, Started, command

# A small regression that learns; what stands in braces is filled in by each test.
TRAINING = '''\
"""Fit a line."""

import sys

import torch
from torch import nn
{imports}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
features = torch.randn(64, 8)
targets = features.sum(1, keepdim=True)
{before}
for step in range({steps}):
    rows = torch.randint(0, 64, (16,))
    {zero}
    loss = nn.functional.mse_loss(net(features[rows]), targets[rows])
    loss.backward()
    {inside}
    optimizer.step()
{after}
'''


@dataclass
class Folder:
    """A folder of somebody who trains."""

    path: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file, with the folders on the way to it."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def trains(self, **parts: Any) -> Path:
        """Write `train.py`, in which all is well but for the given parts."""
        return self.write("train.py", self.training(**parts))

    def training(
        self,
        *,
        imports: str = "",
        before: str = "",
        steps: int | str = 30,
        zero: str = "optimizer.zero_grad()",
        inside: str = "",
        after: str = "",
    ) -> str:
        """Return the source of a training script."""
        inside = inside.replace("\n", "\n    ")
        return TRAINING.format(
            imports=imports, before=before, steps=steps, zero=zero, inside=inside, after=after
        )

    def python(
        self, *words: str, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run the interpreter in the folder."""
        given = {"text": True, "capture_output": True, "timeout": 120, **options}
        command, where = [sys.executable, *words], self.environment(env)
        return subprocess.run(command, cwd=self.path, env=where, check=False, **given)

    def run(self, *words: str) -> Ended:
        """Run `trainguard run` in the folder, in a process that has imported torch before."""
        return command(self.path, "run", *words)

    def process(self, *words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run `trainguard run` in the folder, in an interpreter of its own."""
        return self.python("-m", "trainguard", "run", *words, **options)

    def start(self, *words: str, **options: Any) -> Started:
        """Start `trainguard run` in the folder, and do not wait for it."""
        command = [sys.executable, "-m", "trainguard", "run", *words]
        return Started(command, cwd=self.path, env=self.environment(), **options)

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment to run in: on one thread, as the others on this machine do."""
        outer = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        return {**outer, "OMP_NUM_THREADS": "1", **(more or {})}

    def document(self, name: str = "out.json") -> dict[str, Any]:
        """Read the JSON file of a run, as strictly as any other reader of JSON would."""

        def refuse(word: str) -> None:
            """Object to what Python reads and JSON does not have."""
            raise ValueError(word)

        return json.loads((self.path / name).read_text(encoding="utf-8"), parse_constant=refuse)

    def found(self, name: str = "out.json") -> list[str]:
        """Return the names of what the JSON file says was found."""
        return [finding["invariant"] for finding in self.document(name)["findings"]]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder that holds `train.py`, in which all is well."""
    made = Folder(tmp_path)
    made.trains()
    return made
