"""
The processes of a declared run, each recorded by itself: forked ones, or torchrun's.

Where there are accelerators no process that trains can be forked: then new ones are started, which
find what was declared by its name. Run as a module, this file is one of them.
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import torch
import torch._dynamo  # as the first optimizer does: once, and not in each process

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.base import Event, Plain
from trainguard.events.joined import digest
from trainguard.events.ranks import RankCourse, RankRun
from trainguard.events.trace import Trace
from trainguard.observe.loop.run_processes import find_declared, observe_in_ranks, record_run
from trainguard.observe.loop.waiting import failed_at
from trainguard.observe.tools.child_process import end_child, end_with, fork_child, forks
from trainguard.observe.tools.devices import count_hideable, is_known, is_present, share_out
from trainguard.observe.tools.isolation import quiet
from trainguard.subjects.loop import Run, Script
from trainguard.subjects.subject import variable_of

_KEPT = 8  # runs, each of which two families judge
_POLL = 0.02
_PLACE = "127.0.0.1"
_REMEDY = "make it run by itself first, under torchrun"
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # where processes are on the CPU


@lru_cache(maxsize=_KEPT)
def observe_processes(run: Run, seed: int, world: int) -> tuple[Trace[Event], ...]:
    """
    Run so many processes of a declared run under the recorder, and return the trace of each.

    Raises SubjectError where one of them fails or hangs, with its rank, unless it has lost one that
    left early, which is found; and Unjudged where no processes can be made.
    """
    if isinstance(run, Script):
        traces, fault = observe_in_ranks(run, world)
    else:
        told = call_in_ranks(_record, run, (seed,), world)
        traces = [Trace.from_text(each.decode()) for each in told]
        fault = _find_fault(traces)
    if fault is not None and not (len(traces) == world and _one_has_left(traces)):
        raise fault
    return tuple(traces)


def _find_fault(traces: Sequence[Trace[Any]]) -> SubjectError | None:
    """Return what the first process has raised that failed as others were gone, if one did."""
    for rank, trace in enumerate(traces):
        if _has_lost(trace):
            told = f"rank {rank} of {len(traces)} {trace.conditions['fault']}"
            return SubjectError(told, _REMEDY)
    return None


def _has_lost(trace: Trace[Any]) -> bool:
    """Say whether a process has failed as others were gone."""
    return trace.conditions["ended"] == "failed" and bool(trace.conditions.get("standing"))


def _one_has_left(traces: Sequence[Trace[Any]]) -> bool:
    """Say whether a replica that came to its end made fewer steps than one that has lost it."""
    made: dict[Any, tuple[list[int], list[int]]] = {}
    if not all(trace.conditions["ended"] == "finished" or _has_lost(trace) for trace in traces):
        return False
    for rank, trace in enumerate(traces):
        told = digest(trace, rank, len(traces))
        in_pass = any(event.in_pass for event in told if isinstance(event, RankRun))
        for course in told:
            if isinstance(course, RankCourse) and course.replicas and not course.lone:
                own = made.setdefault((course.optimizer, course.replicas, course.names), ([], []))
                begun = _has_lost(trace) and (course.begun or in_pass)
                own[_has_lost(trace)].append(course.made + begun)
    return any(over and lost and max(lost) > min(over) for over, lost in made.values())


def call_in_ranks(
    work: Callable[..., bytes], subject: Any, given: tuple[Any, ...], world: int
) -> list[bytes]:
    """
    Return what `work(subject, *given)` returns in each of several processes that find each other.

    Raises SubjectError where one of them fails or hangs, with its rank, and Unjudged where no
    processes can be made, or there is not a device for each.
    """
    shared = share_devices(subject.devices, world)
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        files = [Path(scratch, str(rank)) for rank in range(world)]
        with socket.socket() as free:
            free.bind((_PLACE, 0))
            port = free.getsockname()[1]
        if subject.devices == "cpu" and forks():
            call = partial(work, subject, *given)
            jobs = [partial(_be, call, rank, world, port, file) for rank, file in enumerate(files)]
            children = {rank: fork_child(job) for rank, job in enumerate(jobs)}
        else:
            job = Path(scratch, "job")
            job.write_bytes(pickle.dumps((os.getpid(), _address(subject), work, given)))
            told = [(str(job), str(n), str(world), str(port), str(f)) for n, f in enumerate(files)]
            children = {rank: _start(shared, words) for rank, words in enumerate(told)}
        try:
            _wait(children, files, subject.timeout)
        finally:
            for child in children.values():
                end_child(child)
        return [file.read_bytes() for file in files]


def share_devices(kind: str, world: int) -> dict[str, str]:
    """Return what to set for processes with a device each; raises Unjudged where there are none."""
    if kind == "cpu":
        return dict.fromkeys(_HIDDEN, "")
    if not is_known(kind):
        raise SubjectError(f"devices={kind!r} is no type that torch knows", "give 'cpu' or 'cuda'")
    shared, lacking = share_out(world, count_hideable(), os.environ) if kind == "cuda" else ({}, "")
    if lacking or not is_present(f"{kind}:{world - 1}"):
        raise Unjudged(f"{world} processes take a {kind} device each, and there are not as many")
    return shared


def _address(subject: Any) -> str:
    """Return where a new process finds a subject; raises where it cannot."""
    name = variable_of(subject)
    if not name or not hasattr(os, "posix_spawn"):
        raise Unjudged("no process that trains can be forked here, and new ones do not find it")
    return f"{subject.file}::{name}"


def _start(shared: dict[str, str], words: Sequence[str]) -> int:
    """Start a process in a group of its own that does its part, and return its number."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, **shared, "PYTHONPATH": path}
    command = [sys.executable, "-m", "trainguard.observe.ranks.processes", *words]
    return os.posix_spawn(sys.executable, command, environment, setpgroup=0)


def main(words: Sequence[str]) -> int:
    """Be a process that was started: find what was declared, and do the work."""
    job, rank, world, port, file = words
    parent, address, work, given = pickle.loads(Path(job).read_bytes())  # noqa: S301 our parent's
    end_with(parent)
    return _be(
        lambda: work(find_declared(address), *given), int(rank), int(world), int(port), Path(file)
    )


def _wait(children: dict[int, int], files: list[Path], timeout: float) -> None:
    """Wait until all processes have ended; raises for the first that failed, or for time."""
    waiting, until = set(children), monotonic() + timeout
    while waiting:
        looks = {rank: os.waitpid(children[rank], os.WNOHANG) for rank in sorted(waiting)}
        waiting -= {rank for rank, (ended, _) in looks.items() if ended}
        failed = {
            files[rank]: status
            for rank, (ended, status) in looks.items()
            if status or (ended and not files[rank].exists())
        }
        if failed:
            # The first one: what the others say is often that they have lost it.
            first = min(failed, key=lambda file: file.stat().st_mtime if file.exists() else 0.0)
            code = os.waitstatus_to_exitcode(failed[first])
            died = f"was ended by {signal.Signals(-code).name}" if code < 0 else ""
            said = first.read_text(encoding="utf-8") if first.exists() else died
            raise SubjectError(
                f"rank {first.name} of {len(files)} {said or 'ended without a word'}", _REMEDY
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
    return record_run(run, seed, run.steps, _explain_loss).to_text().encode()


def _explain_loss(error: Exception) -> dict[str, Plain]:
    """Return where this process stood as it failed, since others were gone; otherwise nothing."""
    place = failed_at(error)
    told = f"raised {type(error).__name__}: {error}"
    return {"standing": place, "fault": told} if place else {}


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


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # as forked ones do: groups are not waited for
