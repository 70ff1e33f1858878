"""
Run as a script, between us and a command that we wait for: the command never outlives us.

`supervise.py LIFELINE COMMAND...`: LIFELINE is the number of a pipe that only we could write to, so
that it ends when we do, by whatever signal. It imports nothing but Python's own library.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main(lifeline: int, command: list[str]) -> None:
    """Run a command to its end, and end as it did."""
    process = subprocess.Popen(command)  # noqa: S603 it is the one that was to be run
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    code = process.wait()
    if code < 0:
        with suppress(OSError):  # SIGKILL is what it is
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_with(lifeline: int) -> None:
    """Wait for the end of a pipe, then end all that was started here, and this process."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
