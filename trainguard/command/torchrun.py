"""`trainguard run --ranks N`: the script in N processes of torch.distributed.run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from trainguard.command.exit import CLEAN, FAILED, FOUND, INTERRUPTED, USAGE
from trainguard.command.ranks import FOLDER
from trainguard.core.errors import DeclarationError
from trainguard.core.secrets import hide_secrets

_MOST: Final = 1024
# Seconds for the launcher to end after Ctrl-C: it gives its processes 30 to write their reports.
_GRACE: Final = 35


def start_ranks(count: int, words: Sequence[str]) -> int:
    """Run the command of so many words in several processes, and return the worst exit code."""
    if not 1 < count <= _MOST:
        raise DeclarationError(f"--ranks {count} is no number of processes. Give 2 or more.")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise DeclarationError("--ranks starts processes, and a launcher has: leave it out.")
    command = [
        sys.executable,
        "-m",
        "trainguard.observe.tools.launcher",
        str(count),
        "--standalone",
    ]
    with TemporaryDirectory(prefix="trainguard-") as folder:
        # Where none is named, the launcher makes a folder for logs that it does not take away.
        command += [f"--log-dir={folder}/logs", "-m", "trainguard", *_without_ranks(words)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, FOLDER: folder}
        process = subprocess.Popen(command, env=environment)  # noqa: S603 what was asked for
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        try:
            code = process.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):  # a terminal has told both
                process.wait(timeout=_GRACE)
            if process.poll() is None:  # and `kill -INT` only this one
                process.send_signal(signal.SIGINT)
                process.wait()
            return INTERRUPTED
        codes = [json.loads(file.read_text()) for file in Path(folder).glob("[0-9]*")]
    if code:
        return INTERRUPTED if INTERRUPTED in codes else FAILED
    return next((worst for worst in (FOUND, USAGE) if worst in codes), CLEAN)


def settle(code: int) -> int:
    """Return the exit code for the launcher: what was found is told to whoever started it."""
    folder = os.environ.get(FOLDER)
    if folder is None or "RANK" not in os.environ:
        return code
    with suppress(OSError):
        left = Path(folder, f"left{os.environ['RANK']}")
        left.write_text(str(code), encoding="utf-8")
        left.replace(Path(folder, os.environ["RANK"]))  # whole, whenever the launcher ends this one
        return CLEAN if code in (FOUND, USAGE) else code
    return code


def told_command(words: Sequence[str]) -> list[str]:
    """Return the command line that makes the same run again, processes included, secrets hidden."""
    words = [*hide_secrets(words)]
    world = os.environ.get("WORLD_SIZE", "1")
    if world == "1" or "RANK" not in os.environ:
        return ["trainguard", *words]
    if FOLDER in os.environ:
        return ["trainguard", *words[:1], f"--ranks={world}", *words[1:]]
    return ["torchrun", f"--nproc-per-node={world}", "-m", "trainguard", *words]


def _without_ranks(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the option --ranks, the first one."""
    kept = list(words)
    for place, word in enumerate(kept):
        if word.startswith("--ranks="):
            del kept[place]
            break
        if word == "--ranks":
            del kept[place : place + 2]
            break
    return kept
