"""Keep the team's global state as it was: RNG streams, default dtype, grad mode, flags, threads."""

import contextlib
import gc
import inspect
import io
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from time import monotonic, process_time
from types import FrameType
from typing import Any
from zlib import crc32

import torch

from trainguard.core.errors import SubjectError
from trainguard.core.notebook import cell_source
from trainguard.observe.tools import devices
from trainguard.observe.tools.user_line import foreign

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
_SMALLEST_NORMAL = sys.float_info.min
_SOON = 1e-3  # seconds until an alarm that is overdue
_AGAIN = 0.5  # seconds until the next alarm, where one was caught or came at a bad moment
# On a loaded machine a process gets a share of a processor; one that gets less than this waits for
# something else, or for ever.
_STARVED = 0.05
_LONGEST = 20  # times the seconds of a block, by the clock, in which it may use them up
_LEAST = 0.01  # seconds that a block is never given: a clock is not read at the same instant twice


def _set_deterministic(value: bool) -> None:
    """Set PyTorch's deterministic mode; whether it only warns stays as it is."""
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(value, warn_only=only_warns)


def _set_warn_only(value: bool) -> None:
    """Set whether PyTorch's deterministic mode only warns; the mode stays as it is."""
    mode = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode, warn_only=value)


# What a component may change behind its caller's back, with how it is read and set.
SETTINGS: dict[str, Setting] = {
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.are_deterministic_algorithms_enabled()": (
        torch.are_deterministic_algorithms_enabled,
        _set_deterministic,
    ),
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        _set_warn_only,
    ),
    "torch.is_anomaly_enabled()": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "torch.backends.cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    ),
    "torch.backends.cudnn.deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda value: setattr(torch.backends.cudnn, "deterministic", value),
    ),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
}


def settings_now() -> dict[str, Any]:
    """Read every global setting that a component may change."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


def restore(before: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Set back what differs from `before`; return what differed as (name, before, found)."""
    changed = []
    for name, (read, write) in SETTINGS.items():
        found = read()
        if found != before[name]:
            changed.append((name, before[name], found))
            write(before[name])
    return changed


def seed_everything(seed: int) -> None:
    """Seed torch, `random`, and numpy where it is loaded."""
    # Not torch.manual_seed: without CUDA it keeps a formatted stack for every call it gets.
    torch.default_generator.manual_seed(seed)
    devices.seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def read_streams() -> dict[str, Any]:
    """Return the state of every global random stream, by the module that seeds it."""
    streams = {"torch": torch.default_generator.get_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        streams["numpy"] = sys.modules["numpy"].random.get_state()
    return streams | devices.read_streams()


def write_streams(streams: dict[str, Any]) -> None:
    """Put random streams back to the states that were read."""
    for name, state in streams.items():
        match name:
            case "torch":
                torch.default_generator.set_state(state)
            case "random":
                random.setstate(state)
            case "numpy":
                sys.modules["numpy"].random.set_state(state)
            case device:
                devices.write_stream(device, state)


def checksum_streams() -> dict[str, int]:
    """Return a checksum of the state of every global random stream."""
    states = read_streams()
    if "numpy" in states:
        _, keys, *rest = states["numpy"]
        states["numpy"] = (keys.tobytes(), rest)
    return {
        name: crc32(state.numpy().data if isinstance(state, torch.Tensor) else repr(state).encode())
        for name, state in states.items()
    }


@contextmanager
def keep_streams() -> Iterator[None]:
    """Put every global random stream back after a block."""
    streams = read_streams()
    try:
        yield
    finally:
        write_streams(streams)


def flushes_denormals() -> bool:
    """Say whether this thread takes the smallest floating-point numbers for zero."""
    return _SMALLEST_NORMAL / 2 == 0.0


@contextmanager
def isolate(seed: int = 0) -> Iterator[None]:
    """
    Run a block seeded, on one thread and with gradients, and put all global state back after it.

    With denormal numbers too: some libraries turn them off where they are loaded, as what
    torch.compile made did until torch 2.5, and Hypothesis refuses to draw numbers without them.

    One thread because the tensors of an observation are small: on a busy machine, waiting for a
    second thread costs more than it brings (measured 2 to 12 times).
    """
    before = settings_now()
    flushed = flushes_denormals()
    with keep_streams():
        torch.set_num_threads(1)
        torch.set_grad_enabled(True)
        torch.set_flush_denormal(False)
        seed_everything(seed)
        try:
            yield
        finally:
            restore(before)
            torch.set_flush_denormal(flushed)


@contextmanager
def session(seed: int, timeout: float) -> Iterator[None]:
    """Run the team's code seeded, silently, within its seconds, and leave no trace of it."""
    with isolate(seed), deadline(timeout), quiet():
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the team's code prints and warns about out of the report."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Expired(BaseException):
    """
    Interrupts what takes too long; no `except Exception` in anyone's code can stop it.

    Its text is ", at file:line" of the code that is not ours, nothing where none was running.
    call: the call that was running, where that is known.
    """

    call = ""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """
    Raise SubjectError out of the block once it has run for `seconds` of the processor.

    By the clock it has as many if it does not compute, and more where others keep it from it. It
    works by an alarm, hence in the main thread of a Unix process only, and interrupts Python
    code and sleeps, not a call that never comes back from C. Elsewhere the block runs unlimited.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    owner = _whose_block(inspect.currentframe())
    raised: Expired | None = None
    began, allowance = monotonic(), Allowance(seconds)
    # Somebody else's alarm, such as that of pytest-timeout or of a block around this one, comes in
    # its own time.
    outer, again = signal.getitimer(signal.ITIMER_REAL)

    def expire(number: int, frame: FrameType | None) -> None:
        """Interrupt the block where it is, unless it is a moment that must not be interrupted."""
        nonlocal raised, outer
        passed = monotonic() - began
        if outer and passed >= outer:
            outer = passed + again if again else 0.0
            if callable(previous):
                previous(number, frame)
        if allowance.is_used_up(passed) and not _must_wait(frame, owner):
            raised = Expired(_place(frame, owner))
            raise raised

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, outer or seconds), _AGAIN)
    try:
        yield
    except Expired as expired:
        if expired is not raised:
            raise
        raise SubjectError(
            f"it was still running after {seconds:g} seconds{expired}",
            "make it return, or give it more time with timeout=<seconds>",
            expired.call,
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
        if outer:
            left = max(outer - (monotonic() - began), _SOON)
            signal.setitimer(signal.ITIMER_REAL, left, again)


def _whose_block(frame: FrameType | None) -> FrameType | None:
    """Return who entered a context manager: past contextlib, and others that this one is in."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename != contextlib.__file__ and not code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None, owner: FrameType | None) -> str:
    """Write which line that is not ours is running inside the owner's block."""
    while frame is not None and frame is not owner:
        if foreign(frame.f_code.co_filename):
            return f", at {cell_source(f'{frame.f_code.co_filename}:{frame.f_lineno}')}"
        frame = frame.f_back
    return ""


def _must_wait(frame: FrameType | None, owner: FrameType | None) -> bool:
    """
    Say whether Python, inside the owner's block, is deleting an object or importing a module.

    What is raised in a deletion, or by who is told of garbage that is collected, is only printed.
    An import that is cut short leaves a module that can never be imported again, and torch imports
    much of itself at the first use.
    """
    told = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None and frame is not owner:
        code = frame.f_code
        is_lost = code.co_name == "__del__" or code in told or _tells_of_a_deletion(frame)
        if is_lost or code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _tells_of_a_deletion(frame: FrameType) -> bool:
    """Say whether a function is told that an object is gone: it is given a dead weak reference."""
    given = (
        frame.f_locals.get(name) for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]
    )
    return any(isinstance(value, weakref.ref) and value() is None for value in given)


class Allowance:
    """The seconds of the processor that a block may use, and when it is next asked for them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._due = seconds
        self._began = process_time()
        self._latest = 0.0, 0.0

    def is_used_up(self, passed: float) -> bool:
        """Say whether a block, after so many seconds by the clock, is to be interrupted."""
        if passed < self._due:
            return False
        used, before = process_time() - self._began, self._latest
        self._latest = passed, used
        computes = used - before[1] >= _STARVED * (passed - before[0])
        left = min(self._seconds - used, _LONGEST * self._seconds - passed)
        if computes and left > _LEAST:
            self._due = passed + left
            return False
        return True
