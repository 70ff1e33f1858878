"""What losses and models do on a device: whether they agree, and how fast they are swept."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

import trainguard as tg
from benchmarks import sweep
from benchmarks.gpu.machine import Machine, Row, attempt
from fixtures.healthy.loss.guard_mixture_of_logistics import mono_8_bits
from trainguard.observe.loss.batching import evaluator
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.subject import Subject

HEALTHY = Path(__file__).parents[2] / "fixtures/healthy"


def agreement(machine: Machine) -> Iterator[Row]:
    """Judge on all healthy losses and models whether devices agree."""
    files = sorted(HEALTHY.glob("[lm]o[sd]*/guard_*.py"))
    for file in files[:: len(files) // 3] if machine.simulated else files:
        module = import_module(f"fixtures.healthy.{file.parent.name}.{file.stem}")
        for subject in (value for value in vars(module).values() if isinstance(value, Subject)):
            row = {"fixture": f"{file.parent.name}/{file.stem}", "subject": subject.name}
            yield attempt(row, partial(_agree, subject))


def _agree(subject: Subject) -> Row:
    """Return whether devices agree on a subject."""
    judged = tg.check(subject, select=["*devices_agree"], profile="quick")
    return {"outcome": ", ".join(verdict.outcome for verdict in judged)}


def points(machine: Machine) -> Iterator[Row]:
    """Measure how many points a second the sweep explores, against the raw limit."""
    structure = Structure({"B": 1, "T": 1, "K": sweep.COMPONENTS})
    made = evaluator(mono_8_bits, structure, machine.device, torch.float32)
    total = sweep.ROUNDS * made.batch
    for name, work in (("sweep", sweep.by_sweep), ("raw", sweep.by_hand)):
        once = partial(work, made)
        once()
        yield {"what": name, "points a second": round(total / machine.time(once))}
