"""How much the curve of a training differs when it is made again, and whether that is an alarm."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.machine import Machine, Row, attempt
from benchmarks.recorder import Transformer
from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import departs
from trainguard.observe.loop.curves import UlpPerturbation

MOVED = 5  # runs whose parameters begin elsewhere, as for a snapshot
FLAGS: dict[str, Callable[[bool], None]] = {
    "none": lambda _: None,
    "deterministic": lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
    "tf32": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
    "cudnn.benchmark": lambda on: setattr(torch.backends.cudnn, "benchmark", on),
}
Losses = tuple[float, ...]


class Recurrent(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(64, 64), nn.LSTM(64, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits for the word after each."""
        return self.head(self.cells(self.embed(words))[0])  # type: ignore[no-any-return]


def convolution() -> nn.Module:
    """Return a classifier of images."""
    body = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(16 * 36, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolution": convolution,
    "transformer": partial(Transformer, 64, 2, 64),
    "LSTM": Recurrent,
}


def curves(machine: Machine) -> Iterator[Row]:
    """Repeat trainings from one seed, under each flag, and count false alarms."""
    for name in MODELS:
        for flag, switch in FLAGS.items():
            switch(True)
            try:
                yield attempt({"model": name, "flags": flag}, partial(_repeat, machine, name))
            finally:
                switch(False)


def _repeat(machine: Machine, name: str) -> Row:
    """Return how far the losses of repeats are from those of the first run, and from its band."""
    repeats, moved = (3, 1) if machine.simulated else (30, MOVED)
    runs = [_losses(machine, name) for _ in range(repeats)]
    away = [_apart(runs[0], _losses(machine, name, seed)) for seed in range(1, moved + 1)]
    steps = tuple(range(len(runs[0])))
    drift = tuple(accumulate((max(column) for column in zip(*away, strict=True)), max))
    kept = Curve("loss", steps, (runs[0],), drift, len(steps))
    made = [Curve("loss", steps, (run,), (), len(steps)) for run in runs[1:]]
    off = [_apart(runs[0], run) for run in runs[1:]]
    return {
        "repeats": repeats,
        "largest relative difference": max(map(max, off)),
        "at the end": max(each[-1] for each in off),
        "drift": drift[-1],
        "equal to the last bit": sum(run == runs[0] for run in runs[1:]),
        "false alarms": sum(departs(kept, found) is not None for found in made),
    }


def _apart(one: Losses, other: Losses) -> Losses:
    """Return the relative differences of two runs."""
    return tuple(abs(b - a) / abs(a) for a, b in zip(one, other, strict=True))


def _losses(machine: Machine, name: str, moved: int = 0) -> Losses:
    """Train a model from one seed, perhaps from parameters that are moved; return the losses."""
    torch.manual_seed(0)
    net = MODELS[name]().to(machine.device)
    if moved:
        UlpPerturbation(moved).move_module(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(10 if machine.simulated else 100):
        inputs, target = _batch(machine, name)
        loss = F.cross_entropy(net(inputs).flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return tuple(float(loss) for loss in torch.stack(losses).tolist())


def _batch(machine: Machine, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of images and classes, or of words and those after them."""
    if name == "convolution":
        images = torch.randn(32, 3, 8, 8, device=machine.device)
        return images, (images.mean((1, 2, 3)) * 30).long().clamp(0, 9)
    words = torch.randint(0, 64, (8, 33), device=machine.device)
    return words[:, :-1], words[:, 1:]
