"""The processes of a declared run, each recorded by itself: forked ones, or torchrun's."""

import os
import signal
import socket
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import torch
import torch._dynamo  # as the first optimizer does: once, and not in each process

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.loop.run_processes import record_run
from trainguard.observe.tools.child_process import end_child, fork_child, forks
from trainguard.observe.tools.isolation import quiet
from trainguard.subjects.loop import Loop, Run

_KEPT = 8  # runs, each of which two families judge
_POLL = 0.02
_PLACE = "127.0.0.1"


@lru_cache(maxsize=_KEPT)
def observe_processes(run: Run, seed: int, world: int) -> tuple[Trace[Event], ...]:
    """
    Run so many processes of a declared run under the recorder, and return the trace of each.

    Raises SubjectError where one of them fails or hangs, with its rank, and Unjudged where no
    processes can be made.
    """
    if not isinstance(run, Loop):
        raise Unjudged(f"a script: `trainguard run --ranks {run.ranks}` judges it")
    if not forks():
        raise Unjudged("no process that trains can be forked here: `trainguard run --ranks` can")
    told = call_in_ranks(partial(_record, run, seed), world, run.timeout)
    return tuple(Trace.from_text(each.decode()) for each in told)


def call_in_ranks(work: Callable[[], bytes], world: int, timeout: float) -> list[bytes]:
    """
    Return what the function returns in each of several forked processes that can find each other.

    Raises SubjectError where one of them fails or hangs, with its rank.
    """
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        files = [Path(scratch, str(rank)) for rank in range(world)]
        with socket.socket() as free:
            free.bind((_PLACE, 0))
            port = free.getsockname()[1]
        jobs = [partial(_be, work, rank, world, port, file) for rank, file in enumerate(files)]
        children = {rank: fork_child(job) for rank, job in enumerate(jobs)}
        try:
            _wait(children, files, timeout)
        finally:
            for child in children.values():
                end_child(child)
        return [file.read_bytes() for file in files]


def _wait(children: dict[int, int], files: list[Path], timeout: float) -> None:
    """Wait until all processes have ended; raises for the first that failed, or for time."""
    waiting, until = set(children), monotonic() + timeout
    while waiting:
        looks = {rank: os.waitpid(children[rank], os.WNOHANG) for rank in sorted(waiting)}
        waiting -= {rank for rank, (ended, _) in looks.items() if ended}
        failed = {files[rank]: status for rank, (_, status) in looks.items() if status}
        if failed:
            # The first one: what the others say is often that they have lost it.
            first = min(failed, key=lambda file: file.stat().st_mtime if file.exists() else 0.0)
            code = os.waitstatus_to_exitcode(failed[first])
            died = f"was ended by {signal.Signals(-code).name}" if code < 0 else ""
            said = first.read_text(encoding="utf-8") if first.exists() else died
            raise SubjectError(
                f"rank {first.name} of {len(files)} {said or 'ended without a word'}",
                "make it run by itself first, under torchrun",
            )
        if waiting and monotonic() > until:
            named = ", ".join(map(str, sorted(waiting)))
            raise SubjectError(
                f"rank {named} of {len(files)} was still running after {timeout:g} seconds",
                "make it return, or give it more time with timeout=<seconds>",
            )
        sleep(_POLL)


def _be(work: Callable[[], bytes], rank: int, world: int, port: int, file: Path) -> int:
    """Be one of the processes: do the work, and write what it returns, or what went wrong."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR=_PLACE, MASTER_PORT=str(port))
    torch.set_num_threads(1)
    _keep_groups()
    try:
        with quiet():
            result = work()
    except BaseException as error:  # noqa: BLE001 whatever it is, the parent tells of it
        cause = error.__cause__ or error
        file.write_text(f"raised {type(cause).__name__}: {cause}", encoding="utf-8")
        return 1
    file.write_bytes(result)
    return 0


def _record(run: Run, seed: int) -> bytes:
    """Return the trace of a run that is recorded in this process."""
    return record_run(run, seed, run.steps).to_text().encode()


def _keep_groups() -> None:
    """
    Keep the groups of this process until it is ended, whoever destroys them.

    Freed while the other side goes away, gloo's may wait for ever (1 of 40 runs on torch 2.13).
    """
    distributed: Any = torch.distributed
    destroy, kept = distributed.destroy_process_group, []

    def keep(*args: Any, **kwargs: Any) -> None:
        """Destroy a group for the script's purposes."""
        kept.extend(distributed.distributed_c10d._world.pg_map)  # noqa: SLF001
        destroy(*args, **kwargs)

    distributed.destroy_process_group = keep
