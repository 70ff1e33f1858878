"""Observe a declared parallel step: on one process and on several, with the same batches."""

import io
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import torch

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.parallel import Likeness
from trainguard.events.trace import Trace
from trainguard.observe.parallel.likeness import compare
from trainguard.observe.parallel.one_step import Batch, Outcome, step_in_group
from trainguard.observe.parallel.splits import BatchSplit, draw_smaller, draw_splits
from trainguard.observe.ranks.processes import call_in_ranks, share_devices
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.observe.tools.points import Box, uniform
from trainguard.subjects.parallel import Parallel

DRAWS = {"quick": 1, "ci": 2, "thorough": 8}  # batches of the largest sizes
SPLITS = {"quick": 4, "ci": 12, "thorough": 48}  # where sizes or cuts are drawn: milliseconds each
_FSDP = "torch.distributed.fsdp"  # imported where it is needed: that takes a while
_ROUNDED = 1e-3  # of a gradient that two runs on one accelerator may differ by
_SMALLER = 32  # that are tried for the smallest that fails, all in the same processes


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
        _check_torch(self.subject)
        share_devices(self.subject.devices, max(self.subject.worlds))
        splits = self._draw()
        (one,) = self._make(splits, 1, self.settings.seed)
        (again,) = self._make(splits[:1], 1, self.settings.seed + 1)
        _check(self.subject, one[: DRAWS[self.settings.profile]], again[0])
        trace = self._compare(splits, one)
        self.points += len(trace)
        return trace

    def _compare(self, splits: list[BatchSplit], one: list[Outcome]) -> Trace[Likeness]:
        """Make the step on each number of processes, and hold it against that of one."""
        events: list[Likeness] = []
        for world in self.subject.worlds:
            ranks = self._make(splits, world, self.settings.seed)
            for case, outcome in enumerate(one):
                if _is_finite(outcome):  # as a batch of one row may not be
                    events += compare(outcome, [own[case] for own in ranks], case)
        return self.make_trace(tuple(events))

    def shrink(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding at the smallest batch to which the judge objects alike."""
        event = finding.event
        if not isinstance(event, Likeness) or not self.subject.is_drawn:
            return finding
        known = self._draw()[event.case]
        smaller = draw_smaller(self.subject, known, _SMALLER)
        if not smaller:
            return replace(finding, smallest=known.tell(event.world))
        (one,) = self._make(smaller, 1, self.settings.seed)
        trace = self._compare(smaller, one)
        for case, split in enumerate(smaller):
            own = replace(trace, events=tuple(e for e in trace if e.case == case))
            alike = (
                f for f in judge(own) if (f.summary, f.rank) == (finding.summary, finding.rank)
            )
            if (found := next(alike, None)) and isinstance(found.event, Likeness):
                return replace(found, smallest=split.tell(found.event.world))
        return replace(finding, smallest=known.tell(event.world))

    def _draw(self) -> list[BatchSplit]:
        """Return the batches; drawing is deterministic, so they are not kept."""
        profile = self.settings.profile
        return draw_splits(self.subject, DRAWS[profile], SPLITS[profile], self.settings.seed)

    def _make(self, splits: list[BatchSplit], world: int, seed: int) -> list[list[Outcome]]:
        """Return, for each process of so many, what came of its step with each batch."""
        batches = [(split, _fill(self.subject, split)) for split in splits]
        told = call_in_ranks(step_in_group, self.subject, (batches, seed), world)
        return [torch.load(io.BytesIO(each), weights_only=True) for each in told]


def _check_torch(subject: Parallel) -> None:
    """Raise where this torch is too old for what wraps the model."""
    if subject.wrap == "fully_shard" and not hasattr(import_module(_FSDP), "fully_shard"):
        raise SubjectError(
            f'{subject.name} is wrapped by "fully_shard", which torch {torch.__version__} lacks',
            'use torch 2.6 or newer, or wrap="ddp"',
        )


def _fill(subject: Parallel, split: BatchSplit) -> Batch:
    """Draw a batch from the domains of the inputs; of choices that are no tensors the first."""
    box = Box(subject.tensors, split.sizes, torch.float32, "cpu")
    drawn = uniform(box, 1, torch.Generator().manual_seed(split.seed))
    return {n: drawn[n][0] if n in drawn else d.values[0] for n, d in subject.inputs.items()}


def _is_finite(outcome: Outcome) -> bool:
    """Say whether all gradients of a step are numbers."""
    return all(bool(gradient.isfinite().all()) for gradient in outcome["gradients"].values())


def _check(subject: Parallel, one: list[Outcome], again: Outcome) -> None:
    """Raise where the step of one process cannot be held against: by chance, or without numbers."""
    # On accelerators sums are added up in any order.
    alike = torch.equal if subject.devices == "cpu" else partial(torch.allclose, rtol=_ROUNDED)
    pairs = [(gradient, again["gradients"][name]) for name, gradient in one[0]["gradients"].items()]
    if any(not alike(*pair) for pair in pairs):
        raise Unjudged("its step draws random numbers, of which each rank has others: no dropout")
    if not all(map(_is_finite, one)):
        raise SubjectError(
            f"the gradients of {subject.name} are not finite on one process",
            "narrow the domains of its inputs",
        )
    if not any(gradient.any() for each in one for gradient in each["gradients"].values()):
        raise SubjectError(
            f"{subject.name} has no gradient on one process", "go backward in its step"
        )
