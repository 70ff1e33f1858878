"""What a user of `trainguard run` reads: whole reports, as they are printed."""

import re

import pytest

from tests.forks import command

HEALTHY = """\
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
features = torch.randn(64, 8)
targets = features.sum(1, keepdim=True)
for epoch in range(4):
    net.train()
    for step in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(features), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        nn.functional.mse_loss(net(features[:32]), targets[:32])
print("trained")
"""
CLIPPED = "loss.backward()\n        nn.utils.clip_grad_norm_(net.parameters(), 0.01)"
SUMMED = HEALTHY.replace("        optimizer.zero_grad()\n", "")
RUNS = {
    "nothing_found": (HEALTHY, []),
    "a_finding": (SUMMED, ["--steps", "25"]),
    "a_note_and_an_excuse": (
        SUMMED.replace("loss.backward()", CLIPPED),
        ["--allow", "gradients_start_empty=summed on purpose, see ticket 7"],
    ),
    "a_stale_excuse": (HEALTHY, ["--allow", "gradients_start_empty=summed on purpose"]),
    "a_failure": (HEALTHY + "raise LookupError('no checkpoint to write')\n", []),
    "no_step": ("print('only looking')\n", []),
    "not_python": ("Dear reader, this is no Python.\n", []),
    "a_typing_error": (HEALTHY, ["--select", "gradient_start_empty"]),
}
# What follows from the machine and the version of torch, and not from the message.
MACHINE = (
    (r"in [\d.]+ s\b", "in N s"),
    (r"[\d.]+ m?s each(, \d+% of it waiting for data)?", "N ms each"),
    (r"[\d.]+ MiB", "N MiB"),
    (r"\d+ (invariants judged:) \d+ passed", r"N \1 N passed"),
    (r"(?s)  unjudged  \d+ had nothing to judge: .*?see\s+-v", "  unjudged  N had ..."),
    (r"\d+\.\d+(e-\d+)?", "N.N"),
)


@pytest.mark.parametrize("name", RUNS)
def test_a_report(name, tmp_path, snapshot) -> None:
    """The script's output, then what is broken with the way on, then the run in numbers."""
    source, options = RUNS[name]
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    done = command(tmp_path, "run", *options, "train.py", "--lr", "0.1")
    text = f"exit {done.returncode}\nstdout:\n{done.stdout}stderr:\n{done.stderr}"
    assert text.isascii()
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    for pattern, word in MACHINE:
        text = re.sub(pattern, word, text)
    assert text.replace(str(tmp_path), "<here>") == snapshot
