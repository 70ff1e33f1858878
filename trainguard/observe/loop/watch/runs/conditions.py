"""Watches what the numbers of a run depend on beside its code: device, dtype, flags."""

import os
import platform
import sys
from typing import Any

import torch

from trainguard.core.secrets import hide_secrets, is_secret
from trainguard.events.base import Plain
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.devices import autocast_dtype, module_of

_VARIABLES = (
    "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "NCCL_", "HIP_", "PYTORCH_", "TORCH_", "OMP_",
    "MKL_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTHONHASHSEED", "XLA_", "ACCELERATE_",
)  # fmt: skip
_LIBRARIES = ("numpy", "transformers", "accelerate", "datasets", "lightning", "deepspeed", "timm")


class Conditions(Watcher):
    """No column: `seen` is what the first step of the run was made under."""

    makes = ()

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.seen: dict[str, Plain] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Count the passes backward before the first step: it may never come."""
        if not self.recorder.steps:
            counted = self.seen.get("backwards", 0)
            self.seen["backwards"] = counted + 1 if isinstance(counted, int) else 1

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Look at the first step of the run, once."""
        self.seen.pop("backwards", None)
        if "device" not in self.seen and window.parameters:
            device = window.parameters[0].device
            dtypes = {str(p.dtype).removeprefix("torch.") for p in window.parameters}
            self.seen |= {
                "device": device.type,
                "hardware": _hardware(device),
                "dtype": _with_autocast(device.type, tuple(sorted(dtypes))),
                "deterministic": _deterministic(),
                "python": platform.python_version(),
                "arguments": tuple(hide_secrets(map(str, sys.argv[1:]))),
                "environment": _environment(),
                "torch_seed": torch.initial_seed(),
                "versions": _versions(),
                "trainguard": str(vars(sys.modules["trainguard"])["__version__"]),
            }
        return {}


def _environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that change how torch and its libraries compute, as far as set."""
    chosen = ((n, v) for n, v in os.environ.items() if n.startswith(_VARIABLES))
    return tuple(sorted((name, value) for name, value in chosen if not is_secret(name, value)))


def _versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of what a training may stand on, of what is imported."""
    told = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _LIBRARIES)
    return tuple((name, version) for name, version in told if isinstance(version, str))


def _hardware(device: torch.device) -> str:
    """Return what a device is called."""
    name = getattr(module_of(device.type), "get_device_name", None)
    if name is not None:
        return str(name(device))
    capability = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    return " ".join(part for part in (platform.machine(), capability) if part)


def _with_autocast(device: str, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return dtypes, with that of autocast where a step is made inside of one."""
    lower = autocast_dtype(device)
    if lower is None:
        return dtypes
    return (*dtypes, f"autocast-{str(lower).removeprefix('torch.')}")


def _deterministic() -> tuple[str, ...]:
    """Return the flags that choose between algorithms, those that are on."""
    flags = {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.get_float32_matmul_precision() != "highest",
    }
    return tuple(name for name, on in flags.items() if on) or ("none",)
