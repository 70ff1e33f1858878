"""One thread is recorded; where several train at once nothing is read, and steps are counted."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.observe.loop.trainings import plain
from trainguard.observe.loop.recorder import Recorder

AT_ONCE = """
import contextlib, threading, torch
from torch import nn
torch.set_num_threads(1)
lock, nothing = threading.Lock(), contextlib.nullcontext()
def make():
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    return net, torch.optim.AdamW(net.parameters())
shared = make()
def train(number):
    net, opt = make()
    for _ in range(50):
        with nothing:
            x = torch.randn(16, 8)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1"}


def in_thread(work: Callable[[], object]) -> None:
    """Do something in a thread of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script under the command."""
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "trainguard", "run", "train.py"],
        cwd=folder,
        env=PLAIN,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("turn", range(3))
def test_threads_that_train_at_once_are_judged_each(turn: int, tmp_path: Path) -> None:
    """The process lives, and each thread's training has passed by itself."""
    done = run(tmp_path, AT_ONCE)
    assert (done.returncode, done.stderr) == (0, ""), turn
    told = " ".join(done.stdout.split())
    assert "train.py: 50 steps of AdamW" in told
    assert "4 trained beside each other, and made 200 steps; each was judged by itself" in told


def test_threads_that_train_at_once_are_told_apart(tmp_path: Path) -> None:
    """One of them leaves its gradients where they are."""
    script = AT_ONCE.replace("opt.zero_grad()", "number == 2 or opt.zero_grad()")
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "gradients_start_empty: `train.py` steps with gradients" in done.stdout
    assert "49 of 49 steps" in done.stdout


def test_threads_that_train_at_once_beyond_nine_are_told_of(tmp_path: Path) -> None:
    """What is left alone is no pass: the report says how many threads are not judged."""
    script = AT_ONCE.replace("range(4)", "range(12)").replace(
        "net, opt = make()", "net, opt = make()\n    gate.wait()"
    )
    script = script.replace("shared = make()", "shared = make()\ngate = threading.Barrier(12)")
    told = " ".join(run(tmp_path, script).stdout.split())
    assert "9 trained beside each other, and made 450 steps" in told
    assert "unjudged 3 more threads that train: there were too many" in told


def test_threads_that_train_at_once_one_model_are_counted(tmp_path: Path) -> None:
    """The process lives, each step is counted, and the reason why none is judged is given."""
    script = AT_ONCE.replace("opt = make()", "opt = shared").replace("with nothing", "with lock")
    done = run(tmp_path, script)
    assert done.returncode == 2
    assert "made 200 training steps that were counted and cannot be judged" in done.stderr
    assert "several threads train at once" in done.stderr


def test_a_training_in_a_thread_is_recorded() -> None:
    """It need not be the main thread; another one may follow it."""
    with Recorder("x") as recorder:
        in_thread(lambda: plain(4))
        in_thread(lambda: plain(5))
        plain(3)
    assert recorder.steps == 12
    assert len([e for e in recorder.trace if type(e).__name__ == "Step"]) == 12


def test_a_step_in_another_thread_is_counted() -> None:
    """A thread beside the training one may step an optimizer; nothing of it is read."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        plain(2)
        in_thread(lambda: [optimizer.step() for _ in range(3)])
        plain(2)
    assert recorder.steps == 7
    assert len([e for e in recorder.trace if type(e).__name__ == "Step"]) == 4


def test_passes_of_another_thread_are_no_evaluations() -> None:
    """An actor that plays in a thread of its own is not taken for the training's evaluation."""
    actor = torch.nn.Linear(4, 1)
    with Recorder("x") as recorder:
        plain(2)
        in_thread(lambda: [actor(torch.randn(2, 4)) for _ in range(3)])
        plain(2)
    assert [e for e in recorder.trace if type(e).__name__ == "Evaluation"] == []
