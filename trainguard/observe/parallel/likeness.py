"""How alike a step of several processes is to that of one process, in numbers."""

from collections.abc import Iterator, Sequence
from math import sqrt

import torch
from torch import Tensor

from trainguard.events.parallel import Likeness
from trainguard.observe.parallel.one_step import Outcome

_SAME = (
    1e-3  # of a gradient's element: what an optimizer makes of elements farther apart may differ
)


def compare(one: Outcome, several: Sequence[Outcome], case: int) -> Iterator[Likeness]:
    """Yield how alike the loss, each gradient and each update are."""
    yield _compare_losses(one["loss"], [each["loss"] for each in several], case)
    alone = any(each["lone_statistics"] for each in several)
    for quantity in ("gradient", "update"):
        wanted = one[f"{quantity}s"]
        whole = sqrt(sum(float(t.square().sum()) for t in wanted.values()))
        for name in wanted:
            found = [each[f"{quantity}s"].get(name) for each in several]
            if any(t is None or t.shape != wanted[name].shape for t in found):
                continue  # cut up in a way that it cannot be put together from
            near = _near(one, several, name) if quantity == "update" else 1.0
            tensors = [wanted[name] * near, *(t * near for t in found)]
            yield _compare_tensors(quantity, name, tensors, whole, case, alone)


def _near(one: Outcome, several: Sequence[Outcome], name: str) -> Tensor:
    """Return where the gradients of all processes are those of one, as ones among zeros."""
    wanted = one["gradients"][name]
    slack = _SAME * wanted.abs()
    near = [(each["gradients"][name] - wanted).abs() <= slack for each in several]
    return torch.stack(near).all(0).double()


def _compare_tensors(
    quantity: str, name: str, tensors: Sequence[Tensor], whole: float, case: int, alone: bool
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
        lone_statistics=alone,
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
