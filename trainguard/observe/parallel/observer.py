"""Observe a declared parallel step: on one process and on several, with the same batches."""

import io
from dataclasses import dataclass
from functools import partial

import torch

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.parallel import Likeness
from trainguard.events.trace import Trace
from trainguard.observe.parallel.likeness import compare
from trainguard.observe.parallel.one_step import Batch, Outcome, step_in_group
from trainguard.observe.ranks.processes import call_in_ranks
from trainguard.observe.tools.child_process import forks
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.observe.tools.points import Box, uniform
from trainguard.subjects.parallel import Parallel

DRAWS = {"quick": 1, "ci": 2, "thorough": 8}  # batches


def observe(
    subject: Parallel, device: str, dtype: str, settings: Settings
) -> "ParallelObservation":
    """Return the observation of a parallel step; no process is made until it is asked for."""
    return ParallelObservation(subject, device, dtype, settings)


@dataclass
class ParallelObservation(SubjectObservation[Parallel, Likeness]):
    """The trace of one parallel step."""

    of, probes = "a parallel step", ("step",)

    def _observe_probe(self, _probe: str) -> Trace[Likeness]:
        """Make the step on one process and on each number of several."""
        if not forks():
            raise Unjudged("no process that trains can be forked here")
        seed = self.settings.seed
        batches = [_draw(self.subject, seed + i) for i in range(DRAWS[self.settings.profile])]
        (one,) = self._make(batches, 1, seed)
        (again,) = self._make(batches[:1], 1, seed + 1)
        _check(self.subject, one, again[0])
        events: list[Likeness] = []
        for world in self.subject.worlds:
            ranks = self._make(batches, world, seed)
            for case, outcome in enumerate(one):
                events += compare(outcome, [own[case] for own in ranks], case)
        self.points += len(events)
        return self.make_trace(tuple(events))

    def _make(self, batches: list[Batch], world: int, seed: int) -> list[list[Outcome]]:
        """Return, for each process of so many, what came of its step with each batch."""
        work = partial(step_in_group, self.subject, batches, seed)
        told = call_in_ranks(work, world, self.subject.timeout)
        return [torch.load(io.BytesIO(each), weights_only=True) for each in told]


def _draw(subject: Parallel, seed: int) -> Batch:
    """Draw a batch from the domains of the inputs; of choices that are no tensors the first."""
    box = Box(subject.tensors, subject.all_sizes, torch.float32, "cpu")
    drawn = uniform(box, 1, torch.Generator().manual_seed(seed))
    return {n: drawn[n][0] if n in drawn else d.values[0] for n, d in subject.inputs.items()}


def _check(subject: Parallel, one: list[Outcome], again: Outcome) -> None:
    """Raise where the step of one process cannot be held against: by chance, or without numbers."""
    if any(
        not torch.equal(gradient, again["gradients"][name])
        for name, gradient in one[0]["gradients"].items()
    ):
        raise Unjudged("its step draws random numbers, of which each rank has others: no dropout")
    gradients = [gradient for each in one for gradient in each["gradients"].values()]
    if not all(gradient.isfinite().all() for gradient in gradients):
        raise SubjectError(
            f"the gradients of {subject.name} are not finite on one process",
            "narrow the domains of its inputs",
        )
    if not any(gradient.any() for gradient in gradients):
        raise SubjectError(
            f"{subject.name} has no gradient on one process", "go backward in its step"
        )
