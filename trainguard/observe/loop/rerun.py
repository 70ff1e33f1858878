"""Make the first steps of a run again, and see where the losses part: the probe "rerun"."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError, Unjudged
from trainguard.curves.store import variable_of
from trainguard.events.base import Event
from trainguard.events.loop import Probe, Step
from trainguard.events.trace import Trace
from trainguard.observe.loop.loop_process import observe_apart
from trainguard.subjects.loop import Loop
from trainguard.subjects.subject import parameters

COMPARED = 8  # steps of each further run
_WORKERS = (0, 2)  # numbers of worker processes that are compared with what was declared
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Record = Callable[[int, Mapping[str, Any]], Trace[Event]]


def rerun(loop: Loop, trace: Trace[Event], record: Record, thorough: bool) -> Trace[Event]:
    """
    Return what differs when a recorded run is begun again.

    record: makes so many of its first steps again in this process, with some arguments changed.
    thorough: whether to begin it in a new process too, which takes a while to start.
    """
    first = losses(trace)
    steps = min(COMPARED, len(first))
    found = [*_find_parting("rerun", first, losses(record(steps, {})))]
    if not found:
        found += _with_workers(loop, first, steps, record)
    if thorough and not found:
        found += _in_a_new_process(loop, trace, first, steps)
    return Trace(loop.name, tuple(found), {}, loop.promises)


def losses(trace: Trace[Event]) -> list[float]:
    """Return the losses of the first steps, in the order in which they were made."""
    return [event.loss for event in trace if isinstance(event, Step)][:COMPARED]


def _with_workers(
    loop: Loop, first: Sequence[float], steps: int, record: Record
) -> Iterator[Probe]:
    """Yield a probe where the number of workers, which the function takes, changes the losses."""
    if "num_workers" not in (parameters(loop.train) or ()):
        return
    for number in _WORKERS:
        if number == loop.arguments.get("num_workers"):
            continue
        found = [*_find_parting("workers", first, losses(record(steps, {"num_workers": number})))]
        if found:
            yield from found
            return


def _in_a_new_process(
    loop: Loop, trace: Trace[Event], first: Sequence[float], steps: int
) -> Iterator[Probe]:
    """Yield a probe where a new process, which knows the loop by its name, has other losses."""
    name = variable_of(loop)
    if not name:
        return
    seed = int(str(trace.conditions.get("seed", 0)))
    try:
        with _environment(_ALONE):
            again = observe_apart(f"{loop.file}::{name}", seed, steps, loop.timeout)
    except (DeclarationError, SubjectError) as fault:
        raise Unjudged(f"alike in one process; in a new one it could not be run: {fault}") from None
    yield from _find_parting("processes", first, losses(again))


def _find_parting(probe: str, first: Sequence[float], second: Sequence[float]) -> Iterator[Probe]:
    """Yield a probe of the first step whose loss is not the same to the last bit."""
    pairs = list(zip(first, second, strict=False))
    for step, (a, b) in enumerate(pairs):
        if a != b and not (isnan(a) and isnan(b)):
            yield Probe(
                probe=probe,
                measured=float(step),
                reference=float(len(pairs)),
                step=step,
                label=f"{a!r} against {b!r}",
            )
            return


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for the children that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
