"""The devices of this machine."""

import torch


def present() -> tuple[str, ...]:
    """Return the device types on which a tensor can be made here, the cpu first."""
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    return ("cpu", *(name for name, backend in backends.items() if backend.is_available()))
