"""
Probe: what a step takes on an accelerator, by the counters of the allocator itself.

The ledger says what the memory is of. The allocator says how much it is, kernels' scratch space
included, and how much more is reserved than is in use.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import AllocationLog
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import Stop, events, moment, stop_of
from trainguard.observe.memory.predict import FollowedStep, predict_step
from trainguard.observe.memory.step import declared_step, make_unfinished_error, says_enough
from trainguard.observe.memory.timeline import Rounding, Timeline, exact, in_blocks
from trainguard.observe.memory.training import train
from trainguard.observe.tools.devices import module_of, present, worker_of
from trainguard.subjects.units import format_bytes

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

_COUNTERS = ("memory_stats", "mem_get_info", "reset_peak_memory_stats", "max_memory_reserved")


class DeviceAllocationLog(AllocationLog):  # type: ignore[no-untyped-call]
    """
    A ledger that knows on which kind of device each storage is.

    devices: the kind of each of its entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []

    def enter(self, tensor: Tensor, func: Any = None) -> int:
        """Enter the storage of a tensor, and its device where it is new."""
        number = super().enter(tensor, func)
        if number == len(self.devices):
            self.devices.append(tensor.device.type)
        return number

    def of_one_device(self) -> tuple[str, AllocationLog]:
        """Return the kind of device that counts, and what is on it: not the cpu, if another is."""
        others = [device for device in self.devices if device != "cpu"]
        chosen = others[0] if others else "cpu"
        kept = AllocationLog()
        kept.entries = self.entries
        kept.changes = [c for c in self.changes if self.devices[c.entry] == chosen]
        return chosen, kept


@dataclass(frozen=True)
class Counters:
    """
    What the allocator counted over a step, in bytes, what was there before apart.

    allocated, reserved: the most of either. total: what the device has. retries: how often the
    allocator had to give everything back and ask again.
    """

    allocated: int
    reserved: int
    total: int
    retries: int


def counts(device: str) -> bool:
    """Say whether a device has an allocator that counts what it gives: CUDA and its like."""
    kind = device.partition(":")[0]
    return kind != "cpu" and all(hasattr(module_of(kind), name) for name in _COUNTERS)


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield how much of the device stays free; raises Unjudged where no device counts."""
    here = [observation.device, *present()]
    chosen = next((device for device in here if counts(device)), None)
    if chosen is None:
        raise Unjudged("headroom is measured on CUDA or its like, which is not present here")
    declared = replace(declared_step(observation), device=chosen)
    seen, counted = measure_device(declared)
    peak = seen.timeline.peak()
    yield Usage(
        quantity="headroom", at=moment(peak.entry), measured=float(counted.reserved),
        reference=float(counted.total), count=int(seen.stop is not None), of=counted.retries,
        sizes=declared.sizes, how=seen.how, detail=_describe_spread(counted),
    )  # fmt: skip


def step(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield what a real step takes on the device, with its difference to the prediction."""
    declared = replace(declared_step(observation), device=observation.device)
    seen, counted = measure_device(declared)
    told = [
        replace(one, measured=max(one.measured, float(counted.allocated)))
        if one.quantity == "peak"
        else one
        for one in events(seen.timeline, seen.how, declared.sizes, seen.detail, seen.stop)
    ]
    if seen.stop is not None and not says_enough(tuple(told), seen.stop, observation.budget):
        raise make_unfinished_error(seen, seen.stop)
    yield from told


def measure_device(declared: DeclaredStep) -> tuple[FollowedStep, Counters]:
    """Make a real step on the device, one for each worker, and read what the allocator counted."""
    kind = declared.device.partition(":")[0]
    module, rounding = module_of(kind), in_blocks if kind == "cuda" else exact
    # First: once the device is in use, no process can be forked for it.
    expected = _predict_peak(declared, rounding)
    with _one_of(module, declared.device), counting(module) as before:
        ledger = DeviceAllocationLog()
        stop = _train(declared, ledger, before, module)
        counted = count_since(before, module)
        how = f"measured on {module.get_device_name()}"
    timeline = Timeline(ledger.of_one_device()[1], rounding)
    return FollowedStep(timeline, how, _difference(counted, expected), stop), counted


def _train(
    declared: DeclaredStep, ledger: DeviceAllocationLog, before: Counters, module: Any
) -> Stop | None:
    """Make the step, and return why it was stopped where it ran out of memory."""
    try:
        with ledger.following():
            train(declared.training(), ledger)
        module.synchronize()
    except (SubjectError, RuntimeError, MemoryError) as error:
        stop = stop_of(error, module.memory_allocated() - before.allocated)
        if stop is None:
            raise
        return stop
    return None


@contextmanager
def _one_of(module: Any, device: str) -> Iterator[None]:
    """Use the device that is named, or one for each worker of pytest-xdist, as far as they go."""
    index = device.partition(":")[2]
    worker = worker_of(os.environ)
    number = module.current_device() if worker is None else worker % module.device_count()
    with module.device(int(index) if index else number):
        yield


@contextmanager
def counting(module: Any) -> Iterator[Counters]:
    """Give back what is cached, let the peaks be counted anew, and yield what is held before."""
    gc.collect()
    module.synchronize()
    module.empty_cache()
    module.reset_peak_memory_stats()
    retries = module.memory_stats().get("num_alloc_retries", 0)
    total = module.mem_get_info()[1]
    try:
        yield Counters(module.memory_allocated(), module.memory_reserved(), total, retries)
    finally:
        module.empty_cache()


def count_since(before: Counters, module: Any) -> Counters:
    """Return what was counted since."""
    return Counters(
        module.max_memory_allocated() - before.allocated,
        module.max_memory_reserved() - before.reserved,
        before.total,
        module.memory_stats().get("num_alloc_retries", 0) - before.retries,
    )


def _predict_peak(declared: DeclaredStep, rounding: Rounding) -> int:
    """Return the peak that is predicted; nothing where the step does not run on fake tensors."""
    try:
        seen = predict_step(replace(declared, device="cpu").training, "cuda")
    except SubjectError:
        return 0
    seen.timeline.rounding = rounding
    return seen.timeline.peak().total


def _difference(counted: Counters, expected: int) -> str:
    """Say how far the prediction was off."""
    if not expected:
        return "which could not be predicted"
    off = (counted.allocated - expected) / expected
    return f"{off:+.1%} against {format_bytes(expected)} predicted"


def _describe_spread(counted: Counters) -> str:
    """Say how much of what is reserved is in use."""
    retried = f", {counted.retries} times given back and asked anew" if counted.retries else ""
    return f"{format_bytes(counted.allocated)} of it in use at the most{retried}"
