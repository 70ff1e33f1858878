"""--live, --fail-fast and --events: what is told of a training before it is over."""

import json
import random
import re
import subprocess
import sys
import time

import pytest

from trainguard.core.catalogue import catalogue

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
NAN = "if step == 700: loss = loss * float('nan')"


def write(folder, steps: int | str = 2000, **parts: str) -> None:
    """Write a training with a `finally` block around its loop."""
    head, loop = folder.training(steps=steps, **parts).split("for step", 1)
    inner = ("for step" + loop).rstrip().replace("\n", "\n    ")
    text = f"{head}try:\n    {inner}\nfinally:\n    print('closed at', step)\n"
    folder.write("train.py", text)


def test_fail_fast_stops_at_the_first_loss_that_is_not_finite(folder) -> None:
    """The step itself is named, `finally` blocks run, and the exit code is that of a finding."""
    write(folder)
    text = (folder.path / "train.py").read_text()
    (folder.path / "train.py").write_text(
        text.replace("loss.backward()", f"{NAN}\n{' ' * 8}loss.backward()")
    )
    done = folder.run("--fail-fast", "--events", "told.jsonl", "train.py")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("closed at 700\n")
    assert (
        "loss_is_finite: the loss of `train.py` is not finite\n  at        step 700" in done.stdout
    )
    assert "stopped   by --fail-fast at step 701: loss_is_finite is broken" in done.stdout
    (line,) = (folder.path / "told.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["steps"], told["invariant"], told["at"]["step"]) == (701, "loss_is_finite", 700)


def test_fail_fast_stops_at_a_logged_number_that_is_not_true(folder) -> None:
    """What is printed is judged as it is said, long before the run is over."""
    norm = "sum(float(p.grad.norm()) for p in net.parameters() if p.grad is not None)"
    after = f"    optimizer.zero_grad()\n    print(f'grad_norm {{{norm}:.4f}}')"
    folder.trains(steps=600, after=after)
    done = folder.run("--fail-fast", "train.py")
    assert done.returncode == 1, done.stderr
    stopped = re.search(r"--fail-fast at step (\d+): logged_values_are_true", done.stdout)
    assert stopped is not None, done.stdout
    assert int(stopped[1]) <= 60


def test_live_tells_once_and_again_at_the_end(folder) -> None:
    """The run goes on to its end, and what was told of it is in its report."""
    write(folder, steps=120, zero="")
    done = folder.run("--live", "--events", "told.jsonl", "train.py")
    assert done.returncode == 1
    assert done.stdout.startswith("closed at 119\n")
    assert done.stderr.count(f"{LEFT_OVER}: ") == 1
    assert "trainguard: certain at step " in done.stderr
    assert done.stdout.count(f"{LEFT_OVER}: ") == 1
    lines = (folder.path / "told.jsonl").read_text().splitlines()
    assert [json.loads(line)["invariant"] for line in lines].count(LEFT_OVER) == 1


def test_a_fault_of_the_beginning_is_told_at_the_end(folder) -> None:
    """What later steps do well takes nothing back."""
    write(folder, steps=400, zero="if step > 60: optimizer.zero_grad()")
    late = folder.run("train.py")
    assert LEFT_OVER not in late.stdout
    done = folder.run("--live", "train.py")
    assert (done.returncode, done.stdout.count(f"{LEFT_OVER}: ")) == (1, 1)


def test_excuses_and_healthy_runs_are_silent(folder) -> None:
    """What is excused neither stops the run nor is told."""
    write(folder, steps=80, zero="")
    excused = (f"--allow={LEFT_OVER}=summed on purpose", "--fail-fast", "--live")
    done = folder.run(*excused, "--select", LEFT_OVER, "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    write(folder, steps=80)
    (folder.path / "told.jsonl").write_text("")
    done = folder.run("--fail-fast", "--live", "--events", "told.jsonl", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    lines = (folder.path / "told.jsonl").read_text().splitlines()
    assert {json.loads(line)["rank"] for line in lines} <= {"note"}  # of the end


def test_a_trace_alone_is_not_judged_meanwhile(folder) -> None:
    """What is kept for a run that is killed changes nothing of what is found at the end."""
    write(folder, steps=400, zero="if step > 60: optimizer.zero_grad()")
    done = folder.run("--trace", "left.json", "train.py")
    assert LEFT_OVER not in done.stdout


def test_events_that_cannot_be_written(folder) -> None:
    """A file that is no file is one sentence before the run."""
    write(folder, steps=40)
    done = folder.run("--events", ".", "train.py")
    assert done.returncode == 2
    assert "--events" in done.stderr


def test_what_is_told_live_needs_steps() -> None:
    """Only what is judged of a single run can be told while it goes on."""
    live = [made for made in catalogue("loop") if made.live]
    assert live
    assert {made.probe for made in live} == {"run"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as Unix does")
@pytest.mark.parametrize("number", range(20))
def test_a_killed_run_leaves_a_trace(folder, number: int) -> None:
    """Whenever it is killed, its trace can be judged, and lies a few seconds behind at most."""
    write(folder, steps="10**9", zero="", inside="if step < 50: print(step, flush=True)")
    with folder.start("--trace", "left.json", "train.py", stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            if line == "40\n":  # the first steps, before which there is nothing to judge
                break
        time.sleep(random.Random(number).uniform(0, 4))
        run.kill()
    done = folder.python("-m", "trainguard", "judge", "left.json")
    assert done.returncode == 1, done.stderr
    assert f"{LEFT_OVER}: " in done.stdout
    assert "(cut off)" in done.stdout
