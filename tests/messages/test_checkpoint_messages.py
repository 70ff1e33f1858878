"""What a user reads when checkpoints break an invariant: whole messages, as they are printed."""

import re

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.checkpoint.observer
import trainguard.pytest_plugin.session  # noqa: F401
from trainguard.observe.loop.watchers import watchers

watchers()

HEAD = """
import os
import random
from pathlib import Path

import torch
from torch import nn

import trainguard as tg


def train(out_dir: Path, resume=False, flaw=""):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first, file = 0, out_dir / "last.pt"
    if flaw == "raises":
        raise OSError("no data")
    if resume and flaw != "anew":
        state = torch.load(file, weights_only=flaw != "unsafe")
        model.load_state_dict(state["model"])
        if flaw != "optimizer":
            optimizer.load_state_dict(state["optimizer"])
        if flaw != "generator":
            torch.set_rng_state(state["generator"])
        first = state["step"]
    for step in range(first, 8):
        x = torch.arange(64.0).view(16, 4) / 64 + step
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 1:
            parts = {"model": model, "optimizer": optimizer}
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"step": step + 1, "generator": torch.get_rng_state()}
            written = file if flaw == "in place" else out_dir / "last.new"
            torch.save(state, written)
            written.replace(file)


def rotate(directory: Path):
    for path in sorted(directory.glob("step_*[0-9].pt"))[:-3]:
        path.unlink()

"""
# One declaration for each message: the invariant, and what is wrong.
DECLARED = {
    "resume_continues_the_run": 'tg.Checkpoint(train, arguments={"flaw": "generator"})',
    "resume_continues_the_run anew": 'tg.Checkpoint(train, arguments={"flaw": "anew"})',
    "checkpoint_is_complete": 'tg.Checkpoint(train, arguments={"flaw": "optimizer"})',
    "loading_is_safe": 'tg.Checkpoint(train, arguments={"flaw": "unsafe"}, safe=True)',
    "checkpoint_write_is_atomic": 'tg.Checkpoint(train, arguments={"flaw": "in place"})',
    "rotation_keeps_the_newest": 'tg.Checkpoint(rotate=rotate, files="step_{}.pt", keep=3)',
    "checkpoint_is_complete unobservable": 'tg.Checkpoint(train, arguments={"flaw": "raises"})',
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_broken_invariant(name: str, pytester: pytest.Pytester, snapshot) -> None:
    """The message names the invariant, the place, both numbers, the cause and the way on."""
    pytester.makepyfile(guard_checkpoint=f"{HEAD}\ncheckpoint = {DECLARED[name]}\n")
    select = f"--trainguard-select=checkpoint.{name.partition(' ')[0]}"
    result = pytester.runpytest_inprocess("--trainguard", select)
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text

    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]
    failures = failures.replace(str(pytester.path), "FOLDER")
    failures = re.sub(r"\d+ of \d+ bytes", "N of M bytes", failures)  # another torch, another size
    failures = re.sub(r"(measured|allowed) +\d\.\d{5,}", r"\1 LOSS", failures)
    failures = re.sub(
        r"it raised \w+(\.\w+)*: .*?\n(?=  allowed)", "it raised ERROR\n", failures, flags=re.S
    )

    assert failures == snapshot
    rows = [row for row in failures.splitlines() if not row.startswith("____")]
    assert all(len(row) <= 100 and row.isascii() for row in rows)
