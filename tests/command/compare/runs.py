"""Traces of trainings, written by hand, for comparisons."""

from pathlib import Path
from random import Random
from typing import Any

from trainguard.events.loop import Evaluation, Step
from trainguard.events.trace import Trace


def run(
    *,
    seed: int = 0,
    count: int = 80,
    loss: float = 1.0,
    noise: float = 0.0,
    seconds: float = 0.01,
    memory: int = 100 << 20,
    evaluated: tuple[float, ...] = (),
    optimizer: str = "AdamW",
    **conditions: Any,
) -> Trace[Any]:
    """Return a run whose loss falls to `loss`, and whose steps take `seconds`, with some noise."""
    random = Random(seed)
    steps = []
    for step in range(count):
        value = loss + 2.0 * 0.9**step + noise * random.gauss(0, 1)
        known = {"loss": value, "losses": (value,)}
        took = seconds * (1 + noise * random.random()) if step else 60.0
        steps.append(
            Step(step=step, optimizer=optimizer, seconds=took, memory=memory, clock=step, **known)
        )
    tests = [
        Evaluation(step=count, clock=count + i, loss=value, measures=True)
        for i, value in enumerate(evaluated)
    ]
    return Trace("mlp", (*steps, *tests), {"torch": "2.13.0", "threads": 1, **conditions})


def write(file: Path, trace: Trace[Any]) -> str:
    """Write a trace to a file, and return its path."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(trace.to_text(), encoding="utf-8")
    return str(file)
