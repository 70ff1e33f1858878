"""A folder of a team that keeps curves, and pytest run there with syrupy's own options."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

# pytester forgets what a run inside this process was the first to import, and neither torch nor
# matplotlib can be imported twice.
import trainguard.observe.loop.observer
import trainguard.pytest_plugin.session
import trainguard.pytest_plugin.syrupy_store  # noqa: F401

with suppress(ImportError):
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

TRAIN = """
import torch
from torch import nn

def train(rate=0.01, steps=15):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        features = torch.randn(16, 4)
        error = net(features) - features.sum(1, keepdim=True)
        loss = error.square().mean()
        loss.backward()
        optimizer.step()
"""
GUARD = """
import trainguard as tg
from train import train

loop = tg.Loop(train, curve=("loss", "rate"))
"""
TEST = """
from train import train

def test_train(guard):
    guard.curve("loss", train)
"""
SELECT = "--trainguard-select=curve_matches_snapshot"
FOLDER = "__snapshots__/guard_a"
LOSS = f"{FOLDER}/loop.curve_matches_snapshot[loss-cpu].curve"
RATE = f"{FOLDER}/loop.curve_matches_snapshot[rate-cpu].curve"


@dataclass
class Team:
    """The folder: `train.py`, and guard files or tests that keep its curves."""

    pytester: pytest.Pytester

    def write(self, **files: str) -> None:
        """Write files of Python."""
        self.pytester.makepyfile(**files)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text in a file, which must be there."""
        path = self.pytester.path / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def judge(self, *options: str) -> pytest.RunResult:
        """Judge curves alone."""
        return self.run("--trainguard", SELECT, *options)

    def judge_all(self, *options: str) -> pytest.RunResult:
        """Judge all invariants, as those do who want to hear of unused snapshots."""
        return self.run("--trainguard", *options)

    def run(self, *options: str) -> pytest.RunResult:
        """Run pytest in this process."""
        return self.pytester.runpytest_inprocess("-p", "no:randomly", *options)

    @property
    def kept(self) -> dict[str, str]:
        """The files below folders of snapshots, and their texts."""
        files = sorted(self.pytester.path.rglob("__snapshots__/**/*"))
        root: Path = self.pytester.path
        return {
            f.relative_to(root).as_posix(): f.read_text(encoding="utf-8")
            for f in files
            if f.is_file()
        }


@pytest.fixture
def team(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Return a folder with a training in it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files are edited within a second
    made = Team(pytester)
    made.write(train=TRAIN)
    return made
