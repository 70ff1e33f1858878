"""A folder with a model, its declaration, and `trainguard memory` called there."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainguard.command.cli import app

MODEL = '''\
"""A small model of words."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Words(nn.Module):
    """Say of each word which comes next."""

    def __init__(self, width=16, layers=2):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


def next_word(logits, target):
    return cross_entropy(logits.flatten(0, 1), target.flatten())


class Counted(Words):
    """Looks at its numbers, which fake tensors do not have."""

    def forward(self, words):
        return super().forward(words[:, : int(words.max()) % 2 + 2])


class Broken(Words):
    """Has a mistake."""

    def forward(self, words):
        return self.head(words.float())


pairs = {1: 2}
'''
GUARDS = '''\
"""What is declared."""

import torch
import trainguard as tg
from model import Broken, Counted, Words, next_word

shape = {"words": tg.integer("B T", 0, 49), "target": tg.integer("B T", 0, 49)}
words = tg.Model(Words, **shape, sizes={"T": (2, 32), "B": 4}, loss=next_word)
counted = tg.Model(Counted, words=shape["words"])
broken = tg.Model(Broken, words=shape["words"])
square = tg.Loss(
    torch.nn.functional.mse_loss, input=tg.real("B C", -1, 1), target=tg.real("B C", -1, 1)
)
rate = tg.Schedule(torch.optim.lr_scheduler.ConstantLR, base_rate=0.1)


def train(width=8):
    """Fit words to themselves."""
    model = Words(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        words = torch.randint(0, 50, (2, 8))
        next_word(model(words), words).backward()
        optimizer.step()
        optimizer.zero_grad()
        print("trained")


loop = tg.Loop(train)


@tg.guard
def test_made():
    return words


@tg.guard
def test_wants(tmp_path):
    return words
'''


SCRIPT = """\
import sys

from guard_words import train

train(int(sys.argv[1]))
"""


@dataclass
class Folder:
    """A folder of somebody who trains."""

    path: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        file = self.path / name
        file.write_text(text, encoding="utf-8")
        return file

    def memory(self, *words: str) -> Any:
        """Call `trainguard memory` here."""
        return CliRunner().invoke(app, ["memory", *words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a folder with a model and a guard file, as the working directory."""
    made, known = Folder(tmp_path), set(sys.modules)
    made.write("model.py", MODEL)
    made.write("guard_words.py", GUARDS)
    made.write("train.py", SCRIPT)
    made.write("pyproject.toml", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield made
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", "") and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]
