"""
The processes of a distributed run on one machine: the last one to end has the findings of all.

A launcher such as torchrun ends all others once one fails. A process that exits with its findings
while another still saves a checkpoint would do harm, and one that kept silent false comfort. Each
therefore leaves what it found in a file that they share, and the last one fails with it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from trainguard.core.files import is_running

_TOLD: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
Found = dict[str, str]  # {the name of an invariant: the report of what broke it}
State = dict[str, dict[str, Any]]  # {a process: its rank, and what it found once it is over}


def rank() -> int:
    """Return which of the processes of a distributed run this is."""
    told = os.environ.get("RANK", "0")
    return int(told) if told.isdecimal() and "WORLD_SIZE" in os.environ else 0


def own_file(path: Path) -> Path:
    """Return the file that this process of a distributed run writes where one is asked for."""
    return path.with_name(f"{path.name}.rank{rank()}") if rank() else path


def enter() -> None:
    """Let the other processes of a distributed run know that this one has begun."""
    with suppress(OSError), _share_state() as state:
        if not any(is_running(process) for process in state):
            state.clear()  # of a run that was killed
        state[str(os.getpid())] = {"rank": rank()}


def leave(found: Mapping[str, str]) -> dict[int, Found]:
    """Leave what this process found; the last one gets back what each of them did."""
    own, me = {rank(): dict(found)}, str(os.getpid())
    try:
        with _share_state() as state:
            state[me] = {"rank": rank(), "found": dict(found)}
            if any("found" not in told and is_running(each) for each, told in state.items()):
                return {}
            everything = {told["rank"]: told.get("found", {}) for told in state.values()}
            state.clear()
            return everything | own
    except OSError:  # nowhere to meet: each speaks for itself
        return own


def render_others(everything: Mapping[int, Found]) -> str:
    """Return the reports of what only other processes than the first one found."""
    told, parts = set(everything.get(0, {})), []
    for number, found in sorted(everything.items()):
        parts += [f"rank {number}:\n{text}" for name, text in found.items() if name not in told]
        told |= set(found)
    return "\n\n".join(parts)


@contextmanager
def _share_state() -> Iterator[State]:
    """Yield what the processes of this run share, read and written by one of them at a time."""
    if sys.platform == "win32" or os.environ.get("WORLD_SIZE", "1") == "1":
        raise OSError("there are no others")
    import fcntl

    told = [os.environ.get(name, "") for name in _TOLD]
    told += [] if os.environ.get("MASTER_PORT") else [str(os.getppid())]
    name = f"trainguard-{os.getuid()}-{sha256(chr(0).join(told).encode()).hexdigest()[:16]}"
    file = Path(tempfile.gettempdir(), name)
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "r+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # until it is closed
        state: State = {}
        with suppress(ValueError):  # new, or of a process that was killed while it wrote
            state = json.load(stream)
        yield state
        stream.seek(0)
        stream.truncate()
        json.dump(state, stream)
        if not state:
            file.unlink(missing_ok=True)
