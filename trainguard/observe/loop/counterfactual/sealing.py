"""Close off a forked child: whatever the user's code does in it, nobody outside can see it."""

import atexit
import ctypes
import fcntl
import gc
import mmap
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # of Landlock: the same on every architecture
_NO_NEW_PRIVILEGES = 38  # of prctl
# Executing, writing, removing and making files of every kind: <linux/landlock.h>.
_FILES, _REFER, _TRUNCATE = 0x1FF3, 1 << 13, 1 << 14
_NETWORK, _SCOPE = 0b11, 0b11  # binding and connecting; abstract sockets and signals
_REAL = 4.0  # seconds by the clock for each of the processor's: machines are busy
_SPARE_MEMORY = 2**30  # bytes that a child may take beside as much as its parent has
_SHARED_MEMORY = 2**30  # bytes shared with other processes that are copied
# Bytes of a file that is both read and written, such as pytest's of what is printed.
_COPIED = 2**24
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "os.chflags"),
    *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system"),
    *("os.kill", "os.killpg", "signal.pthread_kill", "subprocess.Popen", "shutil.rmtree"),
    *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
    *("sqlite3.connect", "webbrowser.open", "syslog.openlog", "syslog.syslog"),
)
Refuse = Callable[[str], None]


@cache
def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers, below 1 where it offers none."""
    return _system_call(_CREATE_RULESET, None, 0, 1)


@dataclass(slots=True)
class _Seal:
    """
    What closes this process off: its children have it from the start.

    nowhere: the descriptor that leads there, if it is closed off at all. refuse: ends the process,
    told what it was about to do. resting: whether what happens now is our own doing.
    """

    nowhere: int = -1
    refuse: Refuse | None = None
    resting: bool = False


_SEAL = _Seal()


def seal(keep: Sequence[int], seconds: float, refuse: Refuse) -> None:
    """
    Close off this process, but for some descriptors.

    seconds: of processor time that it may take. refuse: ends it, told what it was about to do.
    """
    atexit._clear()  # noqa: SLF001 no public name leads there
    gc.disable()
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)  # a parallel region hangs without the threads that were not forked
    is_first = _SEAL.nowhere < 0
    if is_first:
        _own_shared_memory()
        _SEAL.nowhere = os.open(os.devnull, os.O_RDWR)
    _own_descriptors({*keep, _SEAL.nowhere})
    _limit(seconds)
    if is_first:
        _deny_changes()
        sys.addaudithook(_judge_event)
    _SEAL.refuse, _SEAL.resting = refuse, False


@contextmanager
def unrefused() -> Iterator[None]:
    """Let this process do in here what it would refuse the user's code: fork, and end children."""
    _SEAL.resting = True
    try:
        yield
    finally:
        _SEAL.resting = False


def _limit(seconds: float) -> None:
    """Limit time and memory, and let signals end the process as they would end any other."""
    for number in (*range(1, 32), signal.SIGALRM):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _REAL * seconds + 1)
    pages, held = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split()[:2])
    most = (pages + held) * mmap.PAGESIZE + _SPARE_MEMORY
    for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard < 0 else min(limit, hard), hard))


def _own_descriptors(keep: set[int]) -> None:
    """Let every descriptor lead nowhere; files that are read are opened anew, where they are."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 names are all
        try:
            mode = os.fstat(number).st_mode
            if number in keep or stat.S_ISDIR(mode):
                continue
            own = os.dup(_SEAL.nowhere)
            if stat.S_ISREG(mode):
                _open_anew(number, own)
            os.dup2(own, number)
            os.close(own)
        except OSError:  # the one that the list was read from
            continue


def _open_anew(number: int, own: int) -> None:
    """Let a descriptor be that of a file that is read; of one that is written to too, of a copy."""
    kind = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    size = os.fstat(number).st_size
    if kind == os.O_WRONLY:
        return
    if kind == os.O_RDWR and size <= _COPIED:
        os.dup2(os.memfd_create("copy"), own)
        os.write(own, os.pread(number, size, 0))
    else:
        os.dup2(os.open(f"/proc/self/fd/{number}", os.O_RDONLY), own)
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)


def _own_shared_memory() -> None:
    """Put a private copy in the place of all memory that is shared with other processes."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    for begin, size in _shared_memory():
        copy = ctypes.string_at(begin, size)
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        place = ctypes.c_void_p(begin)
        made = library.mmap(
            place, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0
        )
        if made != begin:
            raise OSError("memory that is shared with others could not be copied")
        ctypes.memmove(begin, copy, size)


def _shared_memory() -> Iterator[tuple[int, int]]:
    """Yield the address and the size of each piece of memory that others would see written."""
    total = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        where, mode = line.split(" ", 2)[:2]
        if mode[1] == "w" and mode[3] == "s":
            begin, end = (int(number, 16) for number in where.split("-"))
            total += end - begin
            if total > _SHARED_MEMORY:
                raise MemoryError("more memory is shared with others than can be copied")
            yield begin, end - begin


def _deny_changes() -> None:
    """Let the kernel refuse what changes files, starts programs or reaches other processes."""
    version = landlock_version()
    files = _FILES | (_REFER if version > 1 else 0) | (_TRUNCATE if version > 2 else 0)
    rights = (ctypes.c_uint64 * 3)(files, _NETWORK, _SCOPE)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _system_call(_CREATE_RULESET, rights, size, 0)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if rules < 0 or _system_call(_RESTRICT_SELF, rules, 0):
        raise OSError("the kernel did not close the process off")


def _system_call(number: int, *args: Any) -> int:
    """Make a system call that Python has no name for."""
    pointers = [ctypes.c_size_t(a) if isinstance(a, int) else a for a in args]
    result: int = ctypes.CDLL(None).syscall(number, *pointers)
    return result


def _judge_event(event: str, args: tuple[Any, ...]) -> None:
    """Refuse an event of Python's auditing that would change something outside."""
    refuse = _SEAL.refuse
    if refuse is None or _SEAL.resting:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITING and not isinstance(path, int):
            refuse(f"it opens {os.fspath(path)!r} for writing")
    elif event in _REFUSED:
        what = f" of {args[0]!r}"[:100] if args and isinstance(args[0], str) else ""
        refuse(f"it calls {event}{what}")
