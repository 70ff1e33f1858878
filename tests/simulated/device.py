"""
A simulated accelerator: `sim:0` and `sim:1`, over host memory and with the kernels of the CPU.

`register()` makes torch know it, for the rest of the process. It is compiled once for each version
of torch, and kept in the folder in which torch keeps extensions.
"""

import hashlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_stack
from types import ModuleType
from typing import Any

import torch

NAME = "sim"
DEFAULT = "TRAINGUARD_SIMULATED"  # the variable that names the device of new tensors
REAL = "TRAINGUARD_ACCELERATOR"  # that which names a type of real devices to be used instead
_SOURCE = Path(__file__).with_name("device.cpp")
_TOTAL = 2**30  # bytes that each device says it has


class CannotBeBuilt(RuntimeError):
    """Says in one sentence why there is no simulated accelerator."""


@dataclass(frozen=True)
class Counts:
    """
    What the host waited for, since the process began or over a block.

    scalars: values that were read. fetched: copies to the host. sent: copies from the host.
    shapes: kernels whose shape or plain value depends on what was computed.
    races: pinned tensors that were written while they were on their way to the device.
    """

    scalars: int = 0
    fetched: int = 0
    sent: int = 0
    shapes: int = 0
    races: int = 0

    def __sub__(self, before: "Counts") -> "Counts":
        """Return what was counted since."""
        names = [column.name for column in fields(self)]
        return Counts(*(getattr(self, name) - getattr(before, name) for name in names))

    @property
    def waits(self) -> int:
        """How often the host waited for the device."""
        return self.scalars + self.fetched + self.shapes


def why_not() -> str:
    """Say why the simulated accelerator cannot be built here, or nothing."""
    if sys.platform != "linux":
        return "the simulated accelerator is built on Linux only"
    if not _built().exists():
        tools = (os.environ.get("CXX", "c++"), "ninja")
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing:
            return f"the simulated accelerator needs {' and '.join(missing)}, to be built once"
    return ""


@cache
def register() -> Any:
    """Make torch know the simulated accelerator, and return the extension; raises CannotBeBuilt."""
    if reason := why_not():
        raise CannotBeBuilt(reason)
    own = _load()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(own))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return own


def counts() -> Counts:
    """Return what the host has waited for by now."""
    return Counts(**register().counts())


@contextmanager
def places(folder: str) -> Iterator[Counter[str]]:
    """Count where code in a folder makes the host wait, each as `kind, file:line`."""
    found: Counter[str] = Counter()

    def told(kind: str) -> None:
        """Find the innermost line of the folder."""
        for frame in reversed(extract_stack()):
            if folder in frame.filename:
                found[f"{kind}, {Path(frame.filename).name}:{frame.lineno}"] += 1
                return

    register().listen(told)
    try:
        yield found
    finally:
        register().listen(None)


def _name() -> str:
    """Return what the extension is called: one name for each source and version of torch."""
    parts = (_SOURCE.read_bytes(), torch.__version__.encode(), sys.version.encode())
    return f"trainguard_simulated_{hashlib.sha256(b'|'.join(parts)).hexdigest()[:12]}"


def _built() -> Path:
    """Return the file that the extension is compiled to."""
    from torch.utils.cpp_extension import get_default_build_root

    root = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    return Path(root) / _name() / f"{_name()}.so"


def _load() -> ModuleType:
    """Import the extension; compile it where that was not yet done."""
    name, file = _name(), _built()
    if not file.exists():
        from torch.utils.cpp_extension import load

        file.parent.mkdir(parents=True, exist_ok=True)
        return load(
            name,
            [str(_SOURCE)],
            extra_cflags=["-O0", "-w"],  # it is compiled once, and slow kernels are the CPU's
            build_directory=str(file.parent),
        )
    loader = ExtensionFileLoader(name, str(file))
    found = spec_from_file_location(name, file, loader=loader)
    assert found is not None
    made = module_from_spec(found)
    loader.exec_module(made)
    return made


def _module(own: Any) -> ModuleType:
    """Return `torch.sim`, with what `torch.cuda` has under the same names."""
    made: Any = ModuleType(f"torch.{NAME}")
    _add_devices(made, own)
    _add_random_numbers(made, own)
    _add_memory(made, own)
    made.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    made.is_bf16_supported = lambda *_: True
    return made


def _index(own: Any, device: Any = None) -> int:
    """Return which device is meant: a number, a name, a torch.device or the current one."""
    if device is None:
        return int(own.device())
    if isinstance(device, int):
        return device if device >= 0 else int(own.device())
    index = torch.device(device).index
    return int(own.device()) if index is None else int(index)


def _add_devices(made: Any, own: Any) -> None:
    """Add what tells of devices, and chooses one."""

    @contextmanager
    def chosen(device: Any) -> Iterator[None]:
        """Make a device the current one for the length of a block."""
        before = own.device()
        own.set_device(_index(own, device))
        try:
            yield
        finally:
            own.set_device(before)

    made.is_available = made.is_initialized = lambda: True
    made._initialized = True  # checkpoints keep the stream of random numbers of such a device alone
    made._is_in_bad_fork = lambda: False
    made._lazy_init = lambda: None
    made.device_count, made.current_device, made.device = own.count, own.device, chosen
    made.set_device = lambda device: own.set_device(_index(own, device))
    made.get_device_name = lambda _device=None: "simulated accelerator"
    made.synchronize = lambda *_: own.synchronize()
    made.empty_cache = lambda *_: None


def _add_random_numbers(made: Any, own: Any) -> None:
    """Add what reads and sets the streams of random numbers."""
    generators = made.default_generators = tuple(own.generator(n) for n in range(own.count()))

    def seed_all(seed: int) -> None:
        """Seed the generators of all devices."""
        for generator in generators:
            generator.manual_seed(seed)

    def seed_current(seed: int) -> None:
        """Seed the generator of the current device."""
        generators[_index(own)].manual_seed(seed)

    made.manual_seed = seed_current
    made.manual_seed_all = seed_all
    made.get_rng_state = lambda d=None: generators[_index(own, d)].get_state()
    made.set_rng_state = lambda state, d=None: generators[_index(own, d)].set_state(state)


def _add_memory(made: Any, own: Any) -> None:
    """Add what an allocator counts; nothing is cached, so that all that is reserved is in use."""

    def stats(device: Any = None) -> dict[str, int]:
        """Return what was counted, as other accelerators call it."""
        index = _index(own, device)
        return {
            "allocation.all.allocated": own.allocations(index),
            "allocated_bytes.all.current": own.allocated(index),
            "allocated_bytes.all.peak": own.peak(index),
            "num_alloc_retries": 0,
        }

    made.memory_stats = stats
    made.memory_allocated = made.memory_reserved = lambda d=None: own.allocated(_index(own, d))
    made.max_memory_allocated = made.max_memory_reserved = lambda d=None: own.peak(_index(own, d))
    made.reset_peak_memory_stats = lambda d=None: own.reset_peak(_index(own, d))
    made.mem_get_info = lambda d=None: (_TOTAL - made.memory_allocated(d), _TOTAL)
