"""A run of which nobody can give an account is no pass, and no file is lost for another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import command

QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `trainguard run` in a folder."""
    command = [sys.executable, "-m", "trainguard", "run", *words]
    return subprocess.run(
        command, cwd=folder, env=QUIET, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(("status", "code"), [(0, 2), (7, 7)])
def test_leaving_at_once_is_no_pass(status: int, code: int, tmp_path: Path) -> None:
    """`os._exit(0)` skips the report: the run says so, and fails."""
    (tmp_path / "train.py").write_text(f"import os\nprint('bye')\nos._exit({status})\n")
    done = run(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (code, "bye\n")
    assert f"left by os._exit({status}): nothing was judged" in done.stderr


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("execlp('sh', 'sh', '-c', 'echo bye')", 2),
        ("execve('/bin/sh', argv=['sh', '-c', 'echo $X; exit 7'], env={'X': 'bye'})", 7),
        ("execv('/bin/sh', ['sh', '-c', 'echo bye; kill -9 $$'])", 128 + 9),
    ],
)
def test_another_program_is_no_pass(call: str, code: int, tmp_path: Path) -> None:
    """A script that makes way for another program is told of, once that has ended."""
    script = "import os\ntry:\n    os.execv('no', ['no'])\nexcept FileNotFoundError:\n"
    (tmp_path / "train.py").write_text(f"{script}    os.{call}\n")
    done = command(tmp_path, "run", "train.py")
    assert (done.returncode, done.stdout) == (code, "bye\n")
    way = "execve" if "execve" in call else "execv"
    assert done.stderr == f"`train.py` left by os.{way}: nothing was judged.\n"


def test_a_forked_child_leaves_as_it_wants(tmp_path: Path) -> None:
    """Only the script itself owes an account."""
    (tmp_path / "train.py").write_text(
        "import os\npid = os.fork()\nif not pid:\n    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = run(tmp_path, "train.py")
    assert done.stdout == "0\n"
    assert "os._exit" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "same", "--trace", "./same", "train.py"), "same is given twice"),
        (("--json", "train.py", "train.py"), "train.py is given twice"),
        (("metrics.jsonl",), "metrics.jsonl is a log"),
    ],
)
def test_a_file_is_what_it_is_given_for(words: tuple, said: str, tmp_path: Path) -> None:
    """Nothing is overwritten, and no log is executed."""
    for name in ("train.py", "metrics.jsonl"):
        (tmp_path / name).write_text("print('ran')\n")
    done = run(tmp_path, *words)
    assert done.returncode == 2 or done.returncode == 4
    assert said in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "train.py").read_text() == "print('ran')\n"
