"""How alike a step of several processes is to that of one process, in numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

from trainguard.events.parallel import Likeness
from trainguard.observe.parallel.one_step import Outcome

_SHARD = 1e-2  # what may be left of what each rank holds, after its factor
_SAME = (
    1e-3  # of a gradient's element: what an optimizer makes of elements farther apart may differ
)


def compare(one: Outcome, several: Sequence[Outcome], case: int) -> Iterator[Likeness]:
    """Yield how alike the loss, each gradient and each update are."""
    alone = any(each["lone_statistics"] for each in several)
    known = {"precision": max(each["precision"] for each in (one, *several))}
    losses = _compare_losses(one["loss"], [each["loss"] for each in several], case)
    yield replace(losses, lone_statistics=alone, **known)
    shards = _explain_by_shards(one, several[0], len(several)) if several[0]["sharded"] else ()
    for quantity in ("gradient", "update"):
        wanted = one[f"{quantity}s"]
        whole = sqrt(sum(float(t.square().sum()) for t in wanted.values()))
        for name in wanted:
            owners = [i for i, each in enumerate(several) if name in each["parameters"]]
            found = [several[i][f"{quantity}s"][name] for i in owners]  # of a pipeline's stage
            if not found or any(t.shape != wanted[name].shape for t in found):
                continue  # cut up in a way that it cannot be put together from
            near = _mark_near(one, several, name) if quantity == "update" else 1.0
            tensors = [wanted[name] * near, *(t * near for t in found)]
            likeness = _compare_tensors(quantity, name, tensors, whole, case)
            likeness = replace(likeness, world=len(several), rank=owners[likeness.rank])
            held = _norm(one["parameters"][name] * near) if quantity == "update" else 0.0
            rounding = known["precision"] * held
            yield replace(
                likeness, rounding=rounding, shards=shards, lone_statistics=alone, **known
            )


def _explain_by_shards(one: Outcome, first: Outcome, world: int) -> tuple[float, ...]:
    """Return one factor for what each rank holds of all gradients, where that is the difference."""
    pairs = [(given, one["gradients"][n]) for n, given in first["gradients"].items()]
    factors = []
    for rank in range(world):
        own = [(g.chunk(world)[rank:], w.chunk(world)[rank:]) for g, w in pairs if w.dim()]
        held = [(g[0].flatten(), w[0].flatten()) for g, w in own if g]
        if not held:
            return ()
        given, wanted = (torch.cat([pair[i] for pair in held]) for i in (0, 1))
        factor = float((given * wanted).sum() / wanted.square().sum())
        if not _norm(given - factor * wanted) <= _SHARD * _norm(given):
            return ()
        factors.append(factor)
    return tuple(factors)


def _mark_near(one: Outcome, several: Sequence[Outcome], name: str) -> Tensor:
    """Return where the gradients of all processes are those of one, as ones among zeros."""
    wanted = one["gradients"][name]
    slack = _SAME * wanted.abs()
    found = [each["gradients"][name] for each in several if name in each["gradients"]]
    near = [(each - wanted).abs() <= slack for each in found]
    return torch.stack(near).all(0).double()


def _compare_tensors(
    quantity: str, name: str, tensors: Sequence[Tensor], whole: float, case: int
) -> Likeness:
    """Compare a tensor of one process, the first one, with those of several."""
    wanted, *found = tensors
    gaps = [_norm(each - wanted) for each in found]
    # What is no number is the farthest off.
    rank = max(range(len(found)), key=lambda i: (gaps[i] != gaps[i], gaps[i]))
    own, total = found[rank], torch.stack(found).sum(0)
    size = _norm(wanted)
    ratio = float((own * wanted).sum()) / size**2 if size else 1.0
    explained = abs(ratio) * size
    return Likeness(
        case,
        quantity=quantity,
        world=len(found),
        place=name.removeprefix("module."),
        rank=rank,
        value=_norm(own),
        reference=size,
        whole=whole,
        apart=gaps[rank],
        between=max(_norm(each - own) for each in found),
        mean=_norm(total / len(found) - wanted),
        sum=_norm(total - wanted),
        ratio=ratio,
        stray=_norm(own - ratio * wanted) / explained if explained else 0.0,
    )


def _norm(tensor: Tensor) -> float:
    """Return the length of a tensor."""
    return sqrt(float(tensor.square().sum()))


def _compare_losses(wanted: float, found: Sequence[float], case: int) -> Likeness:
    """
    Compare the loss of one process with those of several.

    Each may have the mean over its rows, a part of the whole, or the whole, the first one alone.
    """
    mean = sum(found) / len(found)
    return Likeness(
        case,
        quantity="loss",
        world=len(found),
        value=mean,
        reference=wanted,
        whole=1.0,
        apart=min(abs(v - wanted) for v in (mean, sum(found), found[0])),
        ratio=mean / wanted if wanted else 1.0,
    )
