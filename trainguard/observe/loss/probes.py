"""The instruments for losses: each probe with the dtype, the sizes and the effort that it needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainguard.observe.loss.batch import mixing, padding
from trainguard.observe.loss.components import bins, components
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.finite_difference import difference
from trainguard.observe.loss.jumps import line
from trainguard.observe.loss.precision import devices, precision
from trainguard.observe.loss.search import Effort, Probe
from trainguard.observe.loss.sweep import sweep
from trainguard.observe.loss.zero_gradient import plateau
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

EFFORTS = {
    "quick": Effort(structures=3, rounds=2),
    "ci": Effort(structures=5, rounds=4),
    "thorough": Effort(structures=30, rounds=64),
}


@dataclass(frozen=True)
class Instrument:
    """
    A probe, and what its evaluations need.

    dtype: the dtype it works in; the observation's own where empty.
    batch, rounds: how much it explores, where its points cost more than a sweep's.
    looped: the points of a round where the loss cannot be vectorised.
    sizes: the sizes it fixes: of the batch, or with the key "mask" of a mask's last dimension.
    """

    probe: Probe
    dtype: str = ""
    batch: int | None = None
    rounds: int | None = None
    looped: int = 64
    sizes: Mapping[str, int] = field(default_factory=dict)

    def effort(self, profile: Effort, made: Evaluator) -> Effort:
        """Return how much is explored under a profile with a given evaluator."""
        rounds = profile.rounds if self.rounds is None else min(self.rounds, profile.rounds)
        batch = made.batch if self.batch is None else min(self.batch, made.batch)
        if made.loops and self.batch is not None:
            batch = min(batch, self.looped)
        return Effort(profile.structures, rounds, min(batch, profile.batch or batch))

    def fix_sizes(self, loss: Loss, structure: Structure) -> Structure:
        """Return the structure with the sizes that this instrument fixes."""
        fixed = {name: size for name, size in self.sizes.items() if name in structure.sizes}
        for domain in loss.tensors.values():
            if domain.kind == "mask" and "mask" in self.sizes and domain.names:
                fixed[domain.names[-1]] = max(structure.sizes[domain.names[-1]], self.sizes["mask"])
        if "likelihood" in self.sizes:
            fixed |= dict.fromkeys(loss.tensors[loss.likelihood or ""].names, 1)
        return structure.with_sizes(**fixed) if fixed else structure


INSTRUMENTS: Mapping[str, Instrument] = {
    "sweep": Instrument(sweep),
    "plateau": Instrument(plateau, dtype="float64", batch=512, rounds=4),
    "line": Instrument(line, dtype="float64", batch=16, rounds=1, looped=2),
    "difference": Instrument(difference, dtype="float64", batch=64, rounds=2, looped=8),
    "precision": Instrument(precision, batch=1024, rounds=4),
    "devices": Instrument(devices, batch=1024, rounds=2),
    "mixing": Instrument(mixing, batch=32, rounds=2, sizes={BATCH: 3}),
    "padding": Instrument(padding, batch=64, rounds=2, sizes={BATCH: 2, "mask": 4}),
    "components": Instrument(components, batch=64, rounds=1, sizes={BATCH: 2}),
    "bins": Instrument(bins, dtype="float64", batch=4, rounds=2, sizes={"likelihood": 1}),
}
