"""
The steps of a training run, as it is: on fake tensors where it runs on them, else on real ones.

Batches of loaders are served outside of what is followed, in this process, and then made fake: a
sampler needs numbers, and on a device only what was served takes memory.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, dataloader

from trainguard.core.errors import SubjectError
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.memory.allocation_log import AllocationChange, AllocationLog, StorageEntry
from trainguard.observe.memory.events import Stop, stop_of
from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors, fake_twin
from trainguard.observe.memory.kernel_scratch import fill
from trainguard.observe.memory.predict import FollowedStep, changes_on
from trainguard.observe.memory.run_call import call_of, run_silently
from trainguard.observe.memory.step_tracker import StepTracker
from trainguard.observe.memory.timeline import Timeline, exact, in_blocks
from trainguard.observe.memory.training import INPUTS
from trainguard.observe.tools.child_process import call_in_child
from trainguard.observe.tools.patches import Patches
from trainguard.subjects.loop import Run

Made = tuple[list[StorageEntry], list[AllocationChange], str, Stop | None]
_OWN = ("_parameters", "_buffers")


def of_run(run: Run, target: str, most: float, at: Mapping[str, Any]) -> FollowedStep:
    """
    Follow the first steps of a run: predicted for a target device, or else measured.

    most: the bytes that real steps may take. at: arguments of a Loop on top of those declared.
    Raises SubjectError where the run makes no step.
    """
    call = call_of(run, at)
    FakeTensorMode()  # what torch imports for the first one need not be imported in each child
    rounding = in_blocks if target == "cuda" else exact
    try:
        entries, changes, told, stop = call_in_child(lambda: _predict(call, target))
        how, predicted_for = f"predicted for {target} on fake tensors", target
    except SubjectError as fault:
        entries, changes, told, stop = call_in_child(lambda: _measure(call, target, most))
        how, told, predicted_for = "measured on cpu", f"as on fake tensors {fault.sentence}", ""
    ledger = AllocationLog()
    ledger.entries, ledger.changes = entries, changes
    return FollowedStep(Timeline(ledger, rounding), how, told, stop, predicted_for)


def _predict(call: Callable[[], Any], target: str) -> Made:
    """Make the steps on fake tensors; what is returned crosses from one process to another."""
    ledger = FakeAllocationLog()
    with _unheard(), fake_tensors(target) as mode, modules_without_values(mode):
        _follow(call, ledger, target, mode)
    lines = ", ".join(Path(line).name for line in ledger.read)
    told = f"took {len(ledger.read)} logged numbers for granted: {lines}" if lines else ""
    if target == "cpu":
        fill(ledger.entries, ledger.changes, ledger.kernels)
    return ledger.entries, changes_on(target, ledger), told, None


@contextmanager
def _unheard() -> Iterator[None]:
    """Let nobody hear what torch says of fake tensors: what they cannot do is made for real."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _measure(call: Callable[[], Any], target: str, most: float) -> Made:
    """Make the steps on real tensors, and stop them before they take all that the machine has."""
    ledger, stop = AllocationLog(most), None
    try:
        _follow(call, ledger, target, None)
    except (SubjectError, RuntimeError, MemoryError) as error:
        stop = stop_of(error, ledger.live_bytes)
        if stop is None:
            raise
    return ledger.entries, ledger.changes, "", stop


def _follow(
    call: Callable[[], Any], ledger: AllocationLog, target: str, mode: FakeTensorMode | None
) -> None:
    """Make the first steps of a run under a ledger."""
    narrator = StepTracker(ledger, target == "cuda")
    with _loaders(ledger, mode, target == "cuda"), ledger.following(), narrator.following():
        run_silently(call, lambda: f"after {narrator.paces.count} steps")
    if not narrator.paces.count:
        raise SubjectError(
            "it made no optimizer step", "declare what trains, not what sets a training up"
        )


@contextmanager
def _loaders(
    ledger: AllocationLog, mode: FakeTensorMode | None, apart_from_data: bool
) -> Iterator[None]:
    """Serve batches outside of what is followed, and enter them as inputs."""
    patches = Patches()

    def wrap_next(serve: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `__next__` that hands out a batch as it arrives."""

        @wraps(serve)
        def wrapper(iterator: Any) -> Any:
            """Serve a batch."""
            with _disable_current_modes():
                batch = serve(iterator)
            if mode is not None:
                batch = tree_map(lambda value: _fake(value, mode), batch)
            ledger.enter_all(tensors_in(batch), INPUTS)
            return batch

        return wrapper

    def wrap_iter(begin: Callable[..., Any]) -> Callable[..., Any]:
        """Return an `__iter__` that draws its seed outside of what is followed."""

        @wraps(begin)
        def wrapper(loader: Any) -> Any:
            """Begin a pass; workers would be processes of a process, and change no size."""
            if apart_from_data:
                _leave_out(ledger, loader.dataset)
            workers, loader.num_workers = loader.num_workers, 0
            waits, loader.timeout = loader.timeout, 0
            patches.on_undo(lambda: vars(loader).update(num_workers=workers, timeout=waits))
            with _disable_current_modes():
                return begin(loader)

        return wrapper

    patches.replace(DataLoader, "__iter__", wrap_iter)
    patches.replace(dataloader._BaseDataLoaderIter, "__next__", wrap_next)  # noqa: SLF001
    try:
        yield
    finally:
        patches.undo()


def _leave_out(ledger: AllocationLog, data: Any, depth: int = 4) -> None:
    """Leave out what a data set holds, and those that it is made of: it stays on the host."""
    held = list(vars(data).values()) if hasattr(data, "__dict__") else []
    numbers = {ledger.enter(tensor) for tensor in tensors_in(held)} - {-1}
    for number in numbers:
        ledger.entries[number].size = 0
    if numbers:
        ledger.changes = [change for change in ledger.changes if change.entry not in numbers]
    for inner in held if depth else ():
        if isinstance(inner, Dataset):
            _leave_out(ledger, inner, depth - 1)


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    """Return the fake twin of a tensor, and anything else as it is."""
    real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
    return mode.from_tensor(value) if real else value


@contextmanager
def modules_without_values(mode: FakeTensorMode) -> Iterator[None]:
    """Give fake parameters and buffers to all modules that there are, and theirs back after it."""
    twins: dict[int, Tensor] = {}
    undo: list[tuple[Any, Any, Tensor]] = []
    for held, key in list(_places()):
        tensor = held[key]
        if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor):
            undo.append((held, key, tensor))
            if id(tensor) not in twins:
                twins[id(tensor)] = fake_twin(tensor, mode)
            held[key] = twins[id(tensor)]
    try:
        yield
    finally:
        for held, key, tensor in reversed(undo):
            held[key] = tensor


def _places() -> Iterator[tuple[Any, Any]]:
    """Yield where modules and optimizers hold tensors: a dict or list, and the key in it."""
    for found in gc.get_objects():
        if issubclass(type(found), nn.Module):
            held = [vars(found).get(name) for name in _OWN]
        elif issubclass(type(found), Optimizer):
            held = [group["params"] for group in vars(found).get("param_groups", ())]
        else:
            continue
        for one in held:
            if isinstance(one, dict):
                yield from ((one, name) for name in list(one))
            elif isinstance(one, list):
                yield from ((one, place) for place in range(len(one)))
