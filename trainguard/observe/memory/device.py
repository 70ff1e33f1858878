"""
Probe: what a step takes on CUDA, by the counters of the allocator itself.

The ledger says what the memory is of. The allocator says how much it is, kernels' scratch space
included, and how much more is reserved than is in use.
"""

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import AllocationLog
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import Stop, events, moment, stop_of
from trainguard.observe.memory.predict import FollowedStep, predict_step
from trainguard.observe.memory.step import declared_step, make_unfinished_error, says_enough
from trainguard.observe.memory.timeline import Timeline, in_blocks
from trainguard.observe.memory.training import train
from trainguard.subjects.units import format_bytes

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

_WORKER = re.compile(r"gw(\d+)")  # how pytest-xdist calls its workers


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


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield how much of the device stays free; raises Unjudged where there is no CUDA."""
    if not torch.cuda.is_available():
        raise Unjudged("headroom is measured on CUDA, which is not present here")
    declared = replace(declared_step(observation), device="cuda")
    seen, counted = measure_device(declared)
    peak = seen.timeline.peak()
    yield Usage(
        quantity="headroom", at=moment(peak.entry), measured=float(counted.reserved),
        reference=float(counted.total), count=int(seen.stop is not None), of=counted.retries,
        sizes=declared.sizes, how=seen.how, detail=_describe_spread(counted),
    )  # fmt: skip


def step(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield what a real step takes on CUDA, with its difference to the prediction."""
    declared = replace(declared_step(observation), device="cuda")
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
    """Make a real step on CUDA, one GPU for each worker, and read what the allocator counted."""
    expected = _predict_peak(
        declared
    )  # first: once CUDA is in use, no process can be forked for it
    with _one_gpu(), _counting() as before:
        ledger = DeviceAllocationLog()
        stop = _train(declared, ledger, before)
        counted = _count_since(before)
    timeline = Timeline(ledger.of_one_device()[1], in_blocks)
    how = f"measured on {torch.cuda.get_device_name()}"
    return FollowedStep(timeline, how, _difference(counted, expected), stop), counted


def _train(declared: DeclaredStep, ledger: DeviceAllocationLog, before: Counters) -> Stop | None:
    """Make the step, and return why it was stopped where it ran out of memory."""
    try:
        with ledger.following():
            train(declared.training(), ledger)
        torch.cuda.synchronize()
    except (SubjectError, RuntimeError, MemoryError) as error:
        stop = stop_of(error, torch.cuda.memory_allocated() - before.allocated)
        if stop is None:
            raise
        return stop
    return None


@contextmanager
def _one_gpu() -> Iterator[None]:
    """Use one GPU for each worker of pytest-xdist, as far as there are enough."""
    worker = _WORKER.fullmatch(os.environ.get("PYTEST_XDIST_WORKER", ""))
    number = int(worker[1]) % torch.cuda.device_count() if worker else torch.cuda.current_device()
    with torch.cuda.device(number):
        yield


@contextmanager
def _counting() -> Iterator[Counters]:
    """Give back what is cached, let the peaks be counted anew, and yield what is held before."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    total = torch.cuda.mem_get_info()[1]
    try:
        yield Counters(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total, retries)
    finally:
        torch.cuda.empty_cache()


def _count_since(before: Counters) -> Counters:
    """Return what was counted since."""
    return Counters(
        torch.cuda.max_memory_allocated() - before.allocated,
        torch.cuda.max_memory_reserved() - before.reserved,
        before.total,
        torch.cuda.memory_stats().get("num_alloc_retries", 0) - before.retries,
    )


def _predict_peak(declared: DeclaredStep) -> int:
    """Return the peak that is predicted; nothing where the step does not run on fake tensors."""
    try:
        seen = predict_step(replace(declared, device="cpu").training, "cuda")
    except SubjectError:
        return 0
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
