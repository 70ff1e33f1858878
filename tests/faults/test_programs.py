"""Programs that do what programs do: each runs as it would without us, and is judged."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.conftest import trouble
from tests.faults.more_programs import MORE
from tests.faults.programs import ENDS, HEAD, SAME
from tests.forks import Started, command

LOCALES = ("C", "C.UTF-8", "POSIX", "tr_TR.UTF-8", "no_such")


@pytest.fixture
def script(tmp_path: Path):
    """Return what writes a script."""

    def write(body: str) -> Path:
        """Write it to a folder of its own."""
        file = tmp_path / "train.py"
        file.write_text(HEAD + body.replace("\\x00", "\x00") + "\n")
        return file

    return write


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run a command to its end, with the signals of a terminal."""
    with Started(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(
        words, process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
    )


TRAINGUARD = [sys.executable, "-m", "trainguard", "run"]


@pytest.mark.parametrize("name", [*SAME, *MORE])
def test_programs_run_as_without(name: str, script, bench) -> None:
    """What is printed is printed, to the last digit, before the report; the code is 0 to 2."""
    file = script((SAME | MORE)[name])
    alone = command(file.parent, "python", str(file), "a", "-b")
    assert alone.returncode == 0, alone.stderr
    watched = command(file.parent, "run", str(file), "a", "-b")
    told = trouble(watched.returncode, watched.stdout + watched.stderr, (0, 1, 2))
    missing = [line for line in alone.stdout.splitlines() if line not in watched.stdout]
    bench.hold(name, told or (missing and f"{missing} not in {watched.stdout}"))


@pytest.mark.parametrize("name", ENDS)
def test_programs_that_end_badly(name: str, script, bench) -> None:
    """Never with 4, nor with 0 where the training has no account."""
    file = script(ENDS[name])
    watched = command(file.parent, "run", file.name)
    told = watched.stdout + watched.stderr
    codes = (1, 2, 3, 130) if name not in ("exit 0", "raises in a thread") else (0, 1, 2)
    silent = name in ("stdout closed", "descriptors closed")
    by_signal = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGABRT)
    fine = watched.returncode in (*codes, *by_signal, *((0,) if silent else ()))
    bench.hold(name, "" if fine and "please report" not in told else f"{watched.returncode} {told}")


@pytest.mark.parametrize("locale", LOCALES)
def test_locales(locale: str, script, bench) -> None:
    """Letters that a locale lacks cost no report."""
    file = script("print('\\u00e4\\u4e2d'.encode()); train()")
    more = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"} if locale == "C" else {}
    ended = run([*TRAINGUARD, str(file)], file.parent, LC_ALL=locale, LANG=locale, **more)
    bench.hold(locale, trouble(ended.returncode, ended.stdout + ended.stderr, (0, 1)))


@pytest.mark.parametrize("target", ["> /dev/full", "2> /dev/full", "| head -c 1", ">&-", "2>&-"])
def test_streams(target: str, script, bench) -> None:
    """Full, left or closed: no traceback of ours, and no pass that nobody could read."""
    file = script("train()")
    words = " ".join([*TRAINGUARD, "train.py"])
    ended = run(["bash", "-c", f"set -o pipefail; {words} {target}"], file.parent)
    told = ended.stdout + ended.stderr
    unread = not target.startswith("2")
    fine = ended.returncode in ((1, 2, 3) if unread else (0,)) and "report it" not in told
    bench.hold(target, "" if fine else f"{ended.returncode}: {told}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("after", [0.3, 3.0])
def test_signals_to_the_command(number: int, after: float, script, bench) -> None:
    """It ends, at its start and in the middle, and takes the training with it."""
    file = script("print(os.getpid(), flush=True); train(steps=10**6)")
    with Started(
        [*TRAINGUARD, str(file)],
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(after)
        process.send_signal(number)
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
    late = time.monotonic() - began
    fine = process.returncode != 0 and "report it" not in err and late < 50
    bench.hold(
        (number, after), "" if fine else f"{process.returncode} after {late:.1f} s: {out}{err}"
    )


def test_a_loaded_folder(script, bench) -> None:
    """A folder that nobody can write to, and one that is removed meanwhile."""
    file = script("import shutil; train(); shutil.rmtree(os.getcwd())")
    ended = command(file.parent, "run", "--json", "found.json", "train.py")
    bench.hold("removed", trouble(ended.returncode, ended.stdout + ended.stderr))
