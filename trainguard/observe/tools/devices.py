"""The devices of this machine: which there are, what they can do, their random streams."""

from typing import Any

import torch

# What torch.accelerator may be, but for a device that registers itself under a name of its own.
_KINDS = ("cuda", "mps", "xpu", "mtia", "hpu")
_NAMELESS = "privateuseone"


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
