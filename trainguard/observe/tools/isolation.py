"""Keep the team's global state as it was: RNG streams, default dtype, grad mode, flags, threads."""

import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch

from trainguard.observe.tools.deadline import deadline

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
_SMALLEST_NORMAL = sys.float_info.min


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
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


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
    streams = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_streams = numpy.random.get_state() if numpy else None
    flushed = flushes_denormals()
    with torch.random.fork_rng():
        torch.set_num_threads(1)
        torch.set_grad_enabled(True)
        torch.set_flush_denormal(False)
        seed_everything(seed)
        try:
            yield
        finally:
            restore(before)
            torch.set_flush_denormal(flushed)
            random.setstate(streams)
            if numpy is not None:
                numpy.random.set_state(numpy_streams)


@contextmanager
def session(seed: int, timeout: float) -> Iterator[None]:
    """Run the team's code seeded, silently, within its seconds, and leave no trace of it."""
    with isolate(seed), deadline(timeout), quiet():
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the team's code prints and warns about out of the report."""
    with (
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def present() -> tuple[str, ...]:
    """Return the device types on which a tensor can be made here, the cpu first."""
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    return ("cpu", *(name for name, backend in backends.items() if backend.is_available()))
