"""
The command `trainguard` in children of one process that has already imported torch.

A child does all that the command does, from its arguments to its exit code; only the start of an
interpreter is shared, and the seed that a script begins with where it sets none. What is about the
process itself, its streams and signals, is tested in interpreters of their own.

Run as a script, this file is the parent: it reads one job a line from its standard input and
answers with an exit code.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple


class Started(subprocess.Popen):
    """A process with a terminal's signals, whatever this one ignores; ended if left alive."""

    def __init__(self, command, **options) -> None:
        super().__init__(command, preexec_fn=_as_from_a_terminal, **options)

    def __exit__(self, *error) -> None:
        """End it, where the test has failed or timed out while it ran."""
        self.kill()
        super().__exit__(*error)


def _as_from_a_terminal() -> None:
    """Take back that signals are ignored, as a shell's background jobs and nohup have it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def read_terminal(outer: int, process: subprocess.Popen, seconds: float = 60) -> bytes:
    """Return all that a process writes to its terminal; after some seconds it is ended."""
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    sent = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(outer, 65536):
            sent += part
    limit.cancel()
    os.close(outer)
    return sent


def ends(process: int, seconds: float = 10) -> bool:
    """Say whether a process has ended, or does in some seconds: to be killed takes its time."""
    until = time.monotonic() + seconds
    while _is_running(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _is_running(process: int) -> bool:
    """Say whether a process is there and has not ended; nobody may have asked for its exit code."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Run(NamedTuple):
    """What became of a command: its exit code, what it printed, and what it wrote as JSON."""

    code: int
    printed: str
    told: dict


class Ended(NamedTuple):
    """A command that has ended, with the names that `subprocess` has for it."""

    returncode: int
    stdout: str
    stderr: str


@cache
def parent() -> subprocess.Popen:
    """Start the process whose children run the commands, once for all tests of a worker."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.__exit__, None, None, None)  # closes its input, and waits for its end
    return process


def trainguard_run(folder: Path, *words: str) -> Run:
    """Run `trainguard run --json FILE words...` in a folder."""
    out = folder / "found.json"
    ended = command(folder, "run", "--json", str(out), *words)
    told = json.loads(out.read_text()) if out.exists() else {}
    return Run(ended.returncode, ended.stdout + ended.stderr, told)


def command(folder: Path, *words: str) -> Ended:
    """Run `trainguard words...` in a folder, or `python SCRIPT words...`."""
    process = parent()
    assert process.stdin is not None
    assert process.stdout is not None
    with TemporaryDirectory() as beside:
        logs = [Path(beside) / name for name in ("out", "err")]
        job = {"folder": str(folder), "logs": [str(log) for log in logs], "words": words}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return Ended(code, *(log.read_text(encoding="utf-8", errors="replace") for log in logs))


def serve() -> None:
    """Answer jobs until the standard input ends."""
    import torch
    import torch._dynamo  # as the first optimizer does

    from trainguard.command import cli
    from trainguard.observe.loop.counterfactual import asking
    from trainguard.observe.tools.isolation import seed_everything

    asking._CREDIT = asking._MOST  # the run waits: what is asked is not to depend on the machine
    torch.set_num_threads(1)
    seed_everything(0)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(job, cli.app))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(job: dict, app) -> int:
    """Run a job in the child: its own folder, its own output, its own arguments."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    made = [os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for log in job["logs"]]
    for stream, target in enumerate((nothing, *made)):
        os.dup2(target, stream)
    os.chdir(job["folder"])
    words = job["words"]
    sys.argv = words[1:] if words[0] == "python" else ["trainguard", *words]
    code = None
    try:
        if words[0] == "python":
            sys.path[0] = job["folder"]
            runpy.run_path(words[1], run_name="__main__")
        else:
            app(words)
    except SystemExit as end:
        code = end.code
    for name in {"stdout", "stderr"} & set(vars(sys)):  # a script may delete them
        with suppress(ValueError):  # or close them
            getattr(sys, name).flush()
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    serve()
