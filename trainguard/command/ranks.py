"""
The processes of a distributed run: each leaves what it found, and the first one tells of all.

A launcher such as torchrun ends all others once one fails. A process that exits with its findings
while another saves a checkpoint would do harm, and one that kept silent false comfort. Each leaves
what it found, with a digest of its trace: on one machine in a file that they share, on several in
the store of the launcher. The first process waits for the others, in bounded time, and judges all
digests together; where it died, the first that lives. Where none could, the last one to end on a
machine fails with what was found.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, TextIO

from trainguard.core.files import is_running
from trainguard.core.measure import ranks_text
from trainguard.events.base import Plain
from trainguard.events.joined import share_columns
from trainguard.events.trace import Trace
from trainguard.judging.baseline import Baseline, BaselineEntry, entries_of

# The folder of a run by `--ranks`, where each process leaves its exit code too: the launcher would
# make one code of all of them, and a traceback of its own of each finding.
FOLDER: Final = "TRAINGUARD_EXIT_CODES"
_TOLD: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_PATIENCE: Final = 60.0  # seconds for those that still work when the first one has ended
_HURRY: Final = 3.0  # the same where the script has failed: a launcher is about to end all
_POLL: Final = 0.05
Found = dict[str, str]  # {the name of an invariant: the report of what broke it}
State = dict[str, dict[str, Any]]  # {a process: its rank, and what it found once it is over}


@dataclass(slots=True)
class Others:
    """
    What the other processes have left: findings and digests by rank, and who left nothing.

    known: what any of them has found of what a baseline holds, or is to hold. columns: those of
    the digests, each once. handed: which process is to tell of all in the place of the first one,
    for which it waits: it can only go on once that one has ended. 0: none.
    """

    found: dict[int, Found] = field(default_factory=dict)
    digests: dict[int, Trace[Any]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    known: list[BaselineEntry] = field(default_factory=list)
    columns: dict[Any, Any] = field(default_factory=dict)
    handed: int = 0

    def take(self, number: int, told: str) -> None:
        """Take what a process has left, if it is not of another version."""
        try:
            left = json.loads(told)
            if "gone" in left:
                self.missing[number] = str(left["gone"])
                return
            self.known += entries_of(left["known"])
            self.add(number, Trace.from_text(left["digest"]))
            self.found[number] = {str(name): str(text) for name, text in left["found"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            self.missing[number] = "what it left cannot be read: is it of another version?"

    def add(self, number: int, digest: Trace[Any]) -> None:
        """Keep the digest of a process, and of its columns those that no other one has."""
        self.digests[number] = share_columns(digest, self.columns)


def rank() -> int:
    """Return which of the processes of a distributed run this is."""
    return _number("RANK", 0) if "WORLD_SIZE" in os.environ else 0


def world() -> int:
    """Return how many processes a distributed run has; 1 where this is none."""
    size = _number("WORLD_SIZE", 1) if "RANK" in os.environ and sys.platform != "win32" else 1
    return size if rank() < size else 1


def run_name() -> str:
    """Return what tells this distributed run from others: the same in all its processes."""
    told = [os.environ.get(name, "") for name in _TOLD]
    told += [] if os.environ.get("MASTER_PORT") else [str(os.getppid())]
    return sha256(chr(0).join(told).encode()).hexdigest()[:16]


def with_rank(trace: Trace[Any]) -> Trace[Any]:
    """Return a trace that says which process of which distributed run it is of."""
    if world() == 1:
        return trace
    told: dict[str, Plain] = {"rank": rank(), "world": world(), "run": run_name()}
    return replace(trace, conditions={**trace.conditions, **told})


def own_file(path: Path, *, speaks: bool | None = None) -> Path:
    """
    Return the file that this process of a distributed run writes where one is asked for.

    speaks: whether it tells of all, in the file of that very name.
    """
    first = not rank() if speaks is None else speaks
    return path if first else path.with_name(f"{path.name}.rank{rank()}")


def speaks() -> bool:
    """Say whether this process tells of all: the first, or where that is gone the next one."""
    if not _on_one_machine():
        with suppress(Exception):  # no store, or none that answers: as if nobody were gone
            chosen: int = _store().handed() if rank() else 0
            if chosen:
                return rank() == chosen
    with suppress(OSError), _share_state() as state:
        there = {told["rank"]: "found" in told or is_running(each) for each, told in state.items()}
        chosen = max((told.get("handed", 0) for told in state.values()), default=0)
        # One that was never seen may be on another machine.
        earlier = range(chosen, rank())
        return rank() >= chosen and not any(there.get(number, True) for number in earlier)
    return not rank()


def enter() -> None:
    """Let the other processes of a distributed run know that this one has begun."""
    with suppress(OSError), _share_state() as state:
        if not any(is_running(process) for process in state):
            state.clear()  # of a run that was killed
        state[str(os.getpid())] = {"rank": rank()}
        _sweep()


def _sweep() -> None:
    """Take away what runs have left of which each process was killed, and this one elsewhere."""
    own, me = _meeting(), str(os.getpid())
    for left in own.parent.glob(f"{_prefix()}*"):
        if left == own or left.suffix:  # it goes with the file that they have shared
            continue
        with suppress(OSError), _open_locked(left, wait=False) as stream:
            state = _read_state(stream)
            moved = state.pop(me, None)  # the script has set the port of the run since
            if (state or moved) and not any(map(is_running, state)):
                for file in left.parent.glob(f"{left.name}*"):
                    file.unlink()
            elif moved:
                _write_state(stream, state)


def tell(found: Mapping[str, str], digest: Trace[Any], baseline: Baseline) -> None:
    """Leave what this process found, known or new, and its digest, for the one that speaks."""
    told = {"found": dict(found), "digest": digest.to_text(), "known": baseline.seen_text()}
    _leave_word(json.dumps(told))


def tell_gone(why: str) -> None:
    """Leave why nothing is to be had of this process, which is about to leave at once."""
    if world() > 1:
        _leave_word(json.dumps({"gone": why}))


def _leave_word(text: str) -> None:
    """Leave a text for the one that speaks."""
    if _on_one_machine():
        with suppress(OSError):
            _write_private(_meeting(rank()), text)
        return
    with suppress(Exception):  # whatever a store raises: the process on each machine speaks then
        _store().put(rank(), text)


def stand(place: str) -> None:
    """Let the others know that this process waits for some of them in a call, or no longer does."""
    if not _on_one_machine():
        with suppress(Exception):
            _store().stand(rank(), place)
        return
    with suppress(OSError), _share_state() as state:
        own = state.get(str(os.getpid()), {"found": {}})
        if "found" not in own:
            own["stands"] = place


def hand_over(number: int) -> None:
    """Let another process tell of all."""
    if not _on_one_machine():
        with suppress(Exception):
            _store().hand_over(number)
        return
    with suppress(OSError), _share_state() as state:
        state[str(os.getpid())]["handed"] = number


def gather(*, failed: bool, hands_over: bool = False) -> Others:
    """
    Wait for what the other processes leave, in bounded time, and say who left nothing.

    hands_over: whether it is another one's turn as soon as one of them waits for this one.
    """
    others, waiting = Others(), set(range(world())) - {rank()}
    try:
        store = None if _on_one_machine() else _store()
        turn = _take_all(others, waiting, store, failed=failed, hands_over=hands_over)
    except Exception as error:
        # Whatever torch raises where nobody answers, or no longer: a store goes with its machine.
        if _on_one_machine():
            raise
        why = f"it could not be asked: {type(error).__name__}. Give --trace, and `trainguard join`"
        others.missing |= dict.fromkeys(waiting, why)
        return others
    return Others(handed=turn) if turn else others


def _take_all(
    others: Others, waiting: set[int], store: Any, *, failed: bool, hands_over: bool
) -> int:
    """Take what others leave until there are none to wait for; return whose turn it is."""
    began, patience = monotonic(), _HURRY if failed else _PATIENCE
    while waiting:
        here, gone, over, stuck = (
            _processes() if store is None else (waiting, set(), waiting, store.standing(waiting))
        )
        late = monotonic() - began
        for each in sorted(waiting):
            told = None
            if each in over:
                told = _read_left(each) if store is None else store.read(each)
            if told is not None:
                others.take(each, told)
                waiting.discard(each)
            elif each in gone:
                others.missing[each] = "it ended without a word"
                waiting.discard(each)
            elif late > _HURRY and each not in here:
                others.missing[each] = "it was never seen on this machine"
                waiting.discard(each)
        if late > patience:
            break
        if hands_over and late > _HURRY and stuck & waiting:
            return min(stuck & waiting)
        sleep(_POLL if waiting else 0)
    others.missing |= dict.fromkeys(waiting, "it was still running, or hung")
    return 0


def leave(found: Mapping[str, str]) -> dict[int, Found]:
    """Leave what this process found; the last one gets back what each of them did."""
    own, me = {rank(): dict(found)}, str(os.getpid())
    try:
        with _share_state() as state:
            state[me] = {**state.get(me, {}), "rank": rank(), "found": dict(found)}
            if any("found" not in told and is_running(each) for each, told in state.items()):
                return {}
            everything = {told["rank"]: told.get("found", {}) for told in state.values()}
            state.clear()
            for each in everything:
                _meeting(each).unlink(missing_ok=True)
            return everything | own
    except OSError:  # nowhere to meet: each speaks for itself
        return own


def miss_the_first(everything: Mapping[int, Found]) -> str:
    """Return a sentence of the last process here, where the one that judges all was never here."""
    if not everything or 0 in everything or not _on_one_machine():
        return ""
    return (
        f"{ranks_text(sorted(everything))} of {world()}: rank 0 was never seen on this machine, so"
        " that nothing was judged together. Give --trace, and `trainguard join`."
    )


def found_by_others(
    everything: Mapping[int, Found], speaker: int = 0
) -> list[tuple[int, str, str]]:
    """Return rank, invariant and report of what only other processes than the speaker found."""
    told, new = set(everything.get(speaker, {})), []
    for number, found in sorted(everything.items()):
        new += [(number, name, text) for name, text in found.items() if name not in told]
        told |= set(found)
    return new


def render_others(everything: Mapping[int, Found], speaker: int = 0) -> str:
    """Return these reports as they are printed."""
    others = found_by_others(everything, speaker)
    return "\n\n".join(f"rank {n}:\n{text}" for n, _, text in others)


def _read_left(number: int) -> str | None:
    """Return what a process on this machine has left."""
    with suppress(OSError):
        return _meeting(number).read_text(encoding="utf-8")
    return None


def _processes() -> tuple[set[int], set[int], set[int], set[int]]:
    """Return who has begun on this machine, has ended, has left its findings, and stands still."""
    with suppress(OSError), _share_state() as state:
        gone = {told["rank"] for each, told in state.items() if not is_running(each)}
        over = {told["rank"] for told in state.values() if "found" in told} | gone
        stuck = {told["rank"] for told in state.values() if told.get("stands")} - over
        return {told["rank"] for told in state.values()}, gone, over, stuck
    return set(), set(), set(), set()


def _on_one_machine() -> bool:
    """Say whether all processes are on this machine, as far as the launcher says."""
    return _number("LOCAL_WORLD_SIZE", world()) == world()


def _store() -> Any:
    """Return a connection to the launcher's store; raises where there is none."""
    from trainguard.observe.tools.rendezvous import AgentStore  # late: torch

    return AgentStore()


def _number(name: str, default: int) -> int:
    """Return a whole number of the environment."""
    return int(told) if (told := os.environ.get(name, "")).isdecimal() else default


def _meeting(number: int | None = None) -> Path:
    """Return the file that all share, or the one that a process leaves its digest in."""
    end = "" if number is None else f".rank{number}"
    folder = os.environ.get(FOLDER) or tempfile.gettempdir()
    return Path(folder, f"{_prefix()}{run_name()}{end}")


def _prefix() -> str:
    """Return how such files begin: machines may share a folder, and each has its own processes."""
    return f"trainguard-{os.getuid()}-{platform.node().replace('.', '-')}-"


def _write_private(file: Path, text: str) -> None:
    """Write a file that is nobody else's, and follows no link that somebody else has put there."""
    file.unlink(missing_ok=True)
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "w", encoding="utf-8") as stream:
        stream.write(text)


@contextmanager
def _share_state() -> Iterator[State]:
    """Yield what the processes of this run share, read and written by one of them at a time."""
    if sys.platform == "win32" or os.environ.get("WORLD_SIZE", "1") == "1":
        raise OSError("there are no others")
    file = _meeting()
    with _open_locked(file) as stream:
        state = _read_state(stream)
        yield state
        _write_state(stream, state)
        if not state:
            file.unlink(missing_ok=True)


@contextmanager
def _open_locked(file: Path, *, wait: bool = True) -> Iterator[TextIO]:
    """Open a file that is nobody else's meanwhile; raises OSError where that is not to be had."""
    import fcntl

    made = os.O_CREAT if wait else 0
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        opened = os.open(file, os.O_RDWR | made | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "r+", encoding="utf-8") as stream:
            fcntl.flock(stream, how)  # until it is closed
            with suppress(FileNotFoundError):  # taken away meanwhile: it is made anew
                if os.path.samestat(os.fstat(stream.fileno()), file.stat()):
                    yield stream
                    return


def _read_state(stream: TextIO) -> State:
    """Return what processes share; nothing where it is new, or one was killed while it wrote."""
    with suppress(ValueError):
        state: State = json.load(stream)
        return state
    return {}


def _write_state(stream: TextIO, state: State) -> None:
    """Write what processes share in the place of what is there."""
    stream.seek(0)
    stream.truncate()
    json.dump(state, stream)
