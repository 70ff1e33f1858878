"""Child processes: whether one can be forked and train, and commands that run to their end."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.isolation import present

# What a child of ours exits with, as the commands do: where it cannot record, where the team's code
# fails, where trainguard fails.
USAGE, FAILED, OURS = 2, 3, 4
_MOST = 40  # lines of stderr that are shown
_TAIL = 16_384  # bytes of it that are looked at


class Stderr(Exception):
    """Carries the end of what a script wrote to stderr, where a report shows what it raised."""

    # So that it is shown as `Stderr: ...`, without the module that nobody asked for.
    __module__ = "builtins"


def run_to_end(command: Sequence[str], folder: Path, errors: Path, seconds: float) -> int:
    """Run a command to its end, and take all that it started with it if it has none."""
    with errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 to run it is what was declared
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SubjectError(
                f"it was still running after {seconds:g} seconds",
                "make it return, end it with steps=<count>, or give it more with timeout=<seconds>",
            ) from None
        finally:
            _end(process)


def failure(code: int, call: str, errors: Path) -> SubjectError:
    """Say what kept a child from recording, with the end of its stderr underneath."""
    with errors.open("rb") as stderr:
        stderr.seek(max(0, errors.stat().st_size - _TAIL))
        lines = stderr.read().decode(errors="replace").rstrip().splitlines()
    if code == OURS:
        raise RuntimeError("\n".join(lines))
    last = lines[-1] if lines else "it says nothing"
    if code == USAGE and lines:
        sentence, *remedy = lines[-2:]
        return SubjectError(sentence.rstrip("."), " ".join(remedy), call)
    if code == FAILED:
        fault = SubjectError(f"it failed: {last}", "make it run by itself first", call)
    elif code < 0:
        fault = SubjectError(f"it was ended by {signal.Signals(-code).name}", call=call)
    else:
        fault = SubjectError(f"it ended with exit code {code}: {last}", call=call)
    fault.__cause__ = Stderr("\n".join(["", *lines[-_MOST:]]))
    return fault


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its workers, where it has not ended by itself."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def forks() -> bool:
    """
    Say whether a forked child can train.

    Not where there is an accelerator, awake or not: from the first backward pass on autograd has a
    thread for each device, and refuses to go backward in a child of that process.
    """
    return sys.platform == "linux" and present() == ("cpu",) and _goes_backward_in_a_child()


def go_backward() -> None:
    """
    Make the smallest backward pass there is: at its first one, autograd counts the devices.

    To be called before tensors are made fake: on a machine without an accelerator, torch pretends
    from then on that there is one, and some versions (2.15) would count it.
    """
    with torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()  # type: ignore[no-untyped-call]


@cache
def _goes_backward_in_a_child() -> bool:
    """Try it once: fake tensors of other code, such as torch.compile, may have come before."""
    go_backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12: nothing that holds a lock is used
        child = os.fork()
    if not child:
        try:
            go_backward()
            os._exit(0)
        except BaseException:  # noqa: BLE001 whatever it is, it does not go
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
