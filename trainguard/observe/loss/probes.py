"""The probes of losses, each with the dtype, the sizes and the effort that it needs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from trainguard.core.errors import SubjectError, Unjudged, is_ours
from trainguard.observe.loss.batching import evaluator, is_random, mixing, padding
from trainguard.observe.loss.evaluate import Evaluator, count
from trainguard.observe.loss.search import Effort, Key, Measured, Probe
from trainguard.observe.loss.slope import difference, line
from trainguard.observe.loss.zero_gradient import plateau
from trainguard.observe.tools.devices import compared
from trainguard.observe.tools.points import Points
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss
from trainguard.subjects.relation import Relation

_TIMES = 8  # what rounding does: the same as for models, trainguard/invariants/model/variants.py
_LAST_DIGIT = 2.0**-22
_NEAR = (0.0, *4 * [_LAST_DIGIT], *(2.0**power for power in range(-20, -8, 2)))
EFFORTS = {
    "quick": Effort(structures=3, rounds=2),
    "ci": Effort(structures=5, rounds=4),
    "thorough": Effort(structures=30, rounds=64),
}


def sweep(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the loss and every input's gradient.

    "value": the loss; worst where it is not finite, else where it is largest.
    "gradient": an input's gradient at its worst coordinate, worst where it is not finite.
    "largest_gradient": the same among the points at which the gradient is finite.
    """
    gradients, values = made.gradients(points)
    wrong = ~values.isfinite()
    yield Key("value"), Measured(values, values.abs(), bad=wrong)
    for name, gradient in gradients.items():
        elements = gradient.flatten(1) if gradient.ndim > 1 else gradient.unsqueeze(1)
        size = elements.abs().amax(1)
        wrong = ~size.isfinite()
        yield Key("gradient", name), Measured(size, size, elements=elements, bad=wrong)
        if bool(wrong.any()):
            elements = elements.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            size = elements.abs().amax(1)
        yield Key("largest_gradient", name), Measured(size, size, elements=elements.abs())


def components(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how strongly each component pulls: the median norm of its gradient over the points.

    "component", labelled with its name. Where the total is declared and made from the components,
    each is multiplied by the weight that it has in the total.
    """
    norms: dict[str, list[Tensor]] = {name: [] for name in made.loss.components}
    count = len(next(iter(points.values())))
    for index in range(count):
        point = made.single(points, index, grad=True)
        leaves = [point[name] for name in made.differentiable]
        parts = made.component.parts(point)
        for name, found in norms.items():
            found.append(_pull(parts, name, made.loss.total, leaves))
    for name, found in norms.items():
        finite = torch.stack(found)
        finite = finite[finite.isfinite()]
        typical = finite.median() if len(finite) else torch.tensor(torch.nan)
        yield Key("component", label=name), Measured(typical.expand(count), torch.zeros(count))


def bins(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the sum of the probabilities exp(-loss) over every value that the target can take.

    "likelihood": that sum, which is one for a likelihood.
    """
    name = made.loss.likelihood or ""
    listed = made.box.domains[name].list_values(made.box.sizes) or ()
    values = torch.tensor(listed, dtype=torch.float64).to(points[name])
    sums = []
    for index in range(len(points[name])):
        total = torch.zeros((), dtype=made.box.dtype)
        for chunk in torch.split(values, made.batch):
            many = {other: t[index].expand(len(chunk), *t.shape[1:]) for other, t in points.items()}
            many[name] = chunk.view(-1, *[1] * (points[name].ndim - 1)).expand_as(many[name])
            total = total + (-made.values(many)).exp().sum()
        sums.append(total)
    found = torch.stack(sums)
    yield Key("likelihood", name), Measured(found, (found - 1).abs(), torch.ones_like(found))


def _pull(parts: dict[str, Tensor], name: str, total: str | None, leaves: list[Tensor]) -> Tensor:
    """Return the norm of one component's gradient, times its weight in the total."""
    part = parts[name]
    if not part.requires_grad:
        return torch.zeros(())
    found = torch.autograd.grad(part.sum(), leaves, retain_graph=True, allow_unused=True)
    weight = torch.ones(())
    if total is not None and parts[total].requires_grad:
        slope = torch.autograd.grad(parts[total].sum(), part, retain_graph=True, allow_unused=True)
        weight = weight if slope[0] is None else slope[0].abs().mean()
    reached = [gradient.flatten() for gradient in found if gradient is not None]
    return weight * torch.cat(reached).norm() if reached else torch.zeros(())


def precision(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the low-precision gradient is from float64's at the same numbers.

    "precision": |low - exact| / max(|exact|, typical), with the norms taken over all inputs of a
    point and typical the median |exact| of the points: close to its minimum every loss is a
    difference of nearly equal numbers, and what is lost there moves next to nothing. A regime of
    small losses is judged by declaring it: then its own gradients are the typical ones.
    """
    low = _flat(made, points)
    exact_points = {name: t.double() if t.is_floating_point() else t for name, t in points.items()}
    exact = _flat(_twin(made, made.component.device, torch.float64), exact_points)
    error, size = (low.double() - exact).norm(dim=1), exact.norm(dim=1)
    finite = size[size.isfinite()]
    typical = finite.median() if len(finite) else size.new_tensor(0.0)
    scale = torch.maximum(size, typical).clamp_min(torch.finfo(low.dtype).tiny)
    relative = torch.where(error.isfinite() & scale.isfinite(), error / scale, 0.0)
    yield Key("precision"), Measured(relative, relative, scale=size)


def devices(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the gradients of other devices are from the cpu's.

    "device", labelled with the device: |there - here| / (1 + |here|) over all inputs of a point,
    and zero where rounding alone does as much on the cpu.
    """
    if is_random(made, points):
        raise Unjudged("the loss draws random numbers, which are others on each device")
    here = _flat(made, points)
    size, rounding = here.norm(dim=1), _rounding(made, points, here)
    for device in compared():
        if device != made.component.device:
            there = _flat(_twin(made, device, made.component.dtype),
                          {name: t.to(device) for name, t in points.items()})  # fmt: skip
            error = (there.to(here) - here).norm(dim=1)
            beyond = error.isfinite() & (error > _TIMES * rounding)
            relative = torch.where(beyond, error / (size + 1), 0.0)
            yield Key("device", label=device), Measured(relative, relative, scale=size)


def _rounding(made: Evaluator, points: Points, here: Tensor) -> Tensor:
    """
    Return what rounding does to gradients.

    How far they are from those of inputs that differ in the last digit, as at a kink, and from
    float64's at several points around: at one alone the error may be small by luck.
    """
    found = [torch.zeros(len(here)).to(here)]
    twin = _twin(made, made.component.device, torch.float64)
    for seed, share in enumerate(_NEAR):
        near = _shift(points, share, Generator().manual_seed(seed))
        exact = {n: t.double() if t.is_floating_point() else t for n, t in near.items()}
        with suppress(SubjectError):  # some domains end there
            there = _flat(made, near)
            if share <= _LAST_DIGIT:
                found.append((there - here).norm(dim=1))
            with suppress(SubjectError):  # some losses compute in float32 alone
                found.append((_flat(twin, exact).to(here) - there).norm(dim=1))
    return torch.stack(found).nan_to_num(nan=0.0).amax(0)


def _shift(points: Points, share: float, generator: Generator) -> Points:
    """Return points whose floats are larger or smaller by a share, each by its own sign."""
    shifted = {}
    for name, tensor in points.items():
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device="cpu") * 2 - 1
        moves = tensor.is_floating_point()
        shifted[name] = tensor * (1 + share * signs.to(tensor)) if moves else tensor
    return shifted


def _twin(made: Evaluator, device: str, dtype: torch.dtype) -> Evaluator:
    """Return an evaluator of the same structure on another device or in another dtype."""
    component = made.component
    return evaluator(made.loss, component.structure, device, dtype, protect=component.protect,
                     whole=True)  # fmt: skip


def _flat(made: Evaluator, points: Points) -> Tensor:
    """Return all gradients of each point in one row, [N, M]."""
    gradients, _ = made.gradients(points)
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)


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


def relations(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Hold the loss of drawn inputs against that of the same inputs edited, by each relation.

    "relation": the sum of what the loss returns for the edited inputs, `reference` for those as
    they are; `scale` is 1 where the relation is broken, else 0.
    """
    for relation in made.loss.relations:
        rows = [_try(made, relation, made.single(points, i)) for i in range(count(points))]
        after, before, broken = torch.tensor(rows, dtype=torch.float64).T
        found = Measured(after, broken, before, scale=broken, bad=broken > 0)
        yield Key("relation", label=relation.name), found


def _try(
    made: Evaluator, relation: Relation, point: dict[str, torch.Tensor]
) -> tuple[float, float, float]:
    """Return the loss of edited inputs, that of the inputs, and 1 where the relation is broken."""
    try:
        edited = relation.edit_inputs(point)
        before = made.component.total(point).detach()
        after = made.component.total(edited).detach()
        broken = float(bool(relation.find_breach(before, after)))
    except Exception as error:
        if is_ours(error) or isinstance(error, SubjectError):
            raise
        raise SubjectError(
            f"its relation {relation.name!r} raised {type(error).__name__}: {error}",
            "look at edit= and then= of tg.Relation",
        ) from error
    return float(after.sum()), float(before.sum()), broken


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
    "relations": Instrument(relations, batch=32, rounds=2),
    "bins": Instrument(bins, dtype="float64", batch=4, rounds=2, sizes={"likelihood": 1}),
}
