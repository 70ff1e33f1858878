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
from trainguard.core.errors import DeclarationError
from trainguard.core.secrets import hide_secrets

# Where each process leaves its exit code: the launcher would make one code of all of them, and a
# traceback of its own of each finding.
_CODES: Final = "TRAINGUARD_EXIT_CODES"
_MOST: Final = 1024


def start_ranks(count: int, words: Sequence[str]) -> int:
    """Run the command of so many words in several processes, and return the worst exit code."""
    if not 1 < count <= _MOST:
        raise DeclarationError(f"--ranks {count} is no number of processes. Give 2 or more.")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise DeclarationError("--ranks starts processes, and a launcher has: leave it out.")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", "-m", "trainguard", *_without_ranks(words)]
    with TemporaryDirectory(prefix="trainguard-") as folder:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, _CODES: folder}
        process = subprocess.Popen(command, env=environment)  # noqa: S603 what was asked for
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has told both
            process.wait()
            return INTERRUPTED
        codes = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    if code:
        return INTERRUPTED if INTERRUPTED in codes else FAILED
    return next((worst for worst in (FOUND, USAGE) if worst in codes), CLEAN)


def settle(code: int) -> int:
    """Return the exit code for the launcher: what was found is told to whoever started it."""
    folder = os.environ.get(_CODES)
    if folder is None or "RANK" not in os.environ:
        return code
    with suppress(OSError):
        Path(folder, os.environ["RANK"]).write_text(str(code), encoding="utf-8")
        return CLEAN if code in (FOUND, USAGE) else code
    return code


def told_command(words: Sequence[str]) -> list[str]:
    """Return the command line that makes the same run again, processes included, secrets hidden."""
    words = [*hide_secrets(words)]
    world = os.environ.get("WORLD_SIZE", "1")
    if world == "1" or "RANK" not in os.environ:
        return ["trainguard", *words]
    if _CODES in os.environ:
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
