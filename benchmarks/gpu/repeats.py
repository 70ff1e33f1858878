"""How much the curve of a training differs when it is made again."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.machine import Machine, Row


def curves(machine: Machine) -> Iterator[Row]:
    """Repeat a training from one seed, under each flag, and tell how far its losses differ."""
    flags: dict[str, Callable[[bool], None]] = {
        "deterministic": lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
        "tf32": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
        "cudnn.benchmark": lambda on: setattr(torch.backends.cudnn, "benchmark", on),
    }
    repeats = 3 if machine.simulated else 30
    for name in ("none", *flags):
        if name in flags:
            flags[name](True)
        try:
            losses = torch.tensor([_losses(machine) for _ in range(repeats)], dtype=torch.float64)
        finally:
            if name in flags:
                flags[name](False)
        off = ((losses - losses[0]) / losses[0]).abs().amax(0)
        yield {
            "flags": name,
            "repeats": repeats,
            "largest relative difference": float(off.max()),
            "at the end": float(off[-1]),
            "equal to the last bit": int((losses == losses[0]).all(1).sum()),
        }


def _losses(machine: Machine) -> list[float]:
    """Train a convolution and an embedding from one seed; return the losses."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    net = net.to(machine.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(10 if machine.simulated else 200):
        inputs = torch.randn(32, 3, 8, 8, device=machine.device)
        target = (inputs.mean((1, 2, 3)) * 30).long().clamp(0, 9)
        loss = F.cross_entropy(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).tolist()]
