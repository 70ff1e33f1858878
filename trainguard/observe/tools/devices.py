"""The devices of this machine: which there are, what they can do, and who gets which."""

import re
from collections.abc import Mapping
from typing import Any, Final

import torch

# What torch.accelerator may be, but for a device that registers itself under a name of its own.
_KINDS = ("cuda", "mps", "xpu", "mtia", "hpu")
_NAMELESS = "privateuseone"
# What hides devices of CUDA and ROCm from a process, before it has looked.
_VISIBLE: Final = "HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"
_WORKER: Final = re.compile(r"gw(\d+)")  # how pytest-xdist calls its workers


def present() -> tuple[str, ...]:
    """Return the device types on which a tensor can be made here, the cpu first."""
    return ("cpu", *_accelerators())


def compared() -> tuple[str, ...]:
    """
    Return the devices that components are compared on.

    A second one of a type is among them: on the first, whoever forgets which device was asked for
    is right by accident.
    """
    second = [f"{kind}:1" for kind in _accelerators() if _count(kind) > 1]
    return (*present(), *second)


def is_present(device: str) -> bool:
    """Say whether a device is here; one with a number only where there are so many."""
    kind, _, index = device.partition(":")
    return kind in present() and int(index or 0) < (1 if kind == "cpu" else _count(kind))


def is_known(device: str) -> bool:
    """Say whether torch has heard of a device, here or not."""
    try:
        return bool(torch.device(device))
    except RuntimeError:
        return False


def autocast_dtype(kind: str) -> torch.dtype | None:
    """Return what operations are cast to now on a type of device; None where they are not."""
    try:
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    except RuntimeError:  # there is no autocast for it
        return None


def in_use() -> tuple[str, ...]:
    """Return the types of accelerators that were begun to be used: asking others wakes them up."""
    asks = {kind: getattr(module_of(kind), "is_initialized", None) for kind in _accelerators()}
    return tuple(kind for kind, ask in asks.items() if ask is None or ask())


def read_streams() -> dict[str, torch.Tensor]:
    """Return the states of the random streams of all accelerators in use."""
    return {
        f"{kind}:{index}": module_of(kind).get_rng_state(*_place(kind, index))
        for kind in in_use()
        if hasattr(module_of(kind), "get_rng_state")
        for index in range(_count(kind))
    }


def write_stream(device: str, state: torch.Tensor) -> None:
    """Put the random stream of an accelerator back."""
    kind, _, index = device.partition(":")
    module_of(kind).set_rng_state(state, *_place(kind, int(index)))


def seed(number: int) -> None:
    """Seed the random streams of all accelerators in use."""
    for kind in in_use():
        module = module_of(kind)
        (getattr(module, "manual_seed_all", None) or module.manual_seed)(number)


def module_of(kind: str) -> Any:
    """Return `torch.cuda`, or its like for another type of device."""
    return getattr(torch, kind, None)


def worker_of(environment: Mapping[str, str]) -> int | None:
    """Return which worker of pytest-xdist this is, if any."""
    named = _WORKER.fullmatch(environment.get("PYTEST_XDIST_WORKER", ""))
    return int(named[1]) if named else None


def count_hideable() -> int:
    """Return how many devices are here that can be hidden from processes that are started."""
    return _count("cuda") if "cuda" in _accelerators() else 0


def share_out(
    processes: int, count: int, environment: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """
    Return what to set for processes with a device each, of so many, and a sentence if none is left.

    Each worker of pytest-xdist gets devices of its own, of those that are to be seen.
    """
    worker = worker_of(environment)
    workers = 1 if worker is None else int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count < processes * workers:
        more = f" of {workers} workers" if workers > 1 else ""
        told = (
            f"{processes} processes{more} take a device each, and there are {count}: they are on"
            " the CPU. To share devices: torchrun -m trainguard run."
        )
        return ({_VISIBLE: ""}, told) if count else ({}, "")
    seen = environment.get(_VISIBLE, "").split(",")
    names = seen if len(seen) >= count else [str(index) for index in range(count)]
    first = (worker or 0) * processes
    return ({_VISIBLE: ",".join(names[first : first + processes])} if workers > 1 else {}), ""


def _accelerators() -> tuple[str, ...]:
    """Return the types of accelerators that are here."""
    own = torch._C._get_privateuse1_backend_name()  # noqa: SLF001 no public name leads there
    kinds = _KINDS if own == _NAMELESS else (*_KINDS, own)
    return tuple(kind for kind in kinds if _is_available(kind))


def _is_available(kind: str) -> bool:
    """Say whether there is an accelerator of a type; MPS is asked elsewhere."""
    ask = getattr(torch.backends.mps if kind == "mps" else module_of(kind), "is_available", None)
    return ask is not None and bool(ask())


def _count(kind: str) -> int:
    """Return how many devices of a type there are."""
    ask = getattr(module_of(kind), "device_count", None)
    return 1 if ask is None else int(ask())


def _place(kind: str, index: int) -> tuple[int, ...]:
    """Return what says which device is meant; of MPS there is one."""
    return () if kind == "mps" else (index,)
