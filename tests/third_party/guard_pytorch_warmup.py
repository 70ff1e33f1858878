"""The warmups of pytorch-warmup, which dampen the rate that another scheduler has set."""

from typing import Any

import pytorch_warmup
import torch
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import trainguard as tg

COMMON = {"shape": "warmup-decay", "base_rate": 0.1, "total": 1000}


def optimizer() -> Optimizer:
    """Return an optimizer whose second moment asks for a short untuned warmup."""
    return AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1, betas=(0.9, 0.98))


def dampened(schedulers: dict[str, Any], step: int) -> None:
    """Advance the main scheduler inside the warmup, as the package documents it."""
    with schedulers["warmup"].dampening():
        schedulers["main"].step()


def beside_cosine(warmup: Any, *arguments: Any) -> Any:
    """Return a build function: a cosine, and a warmup beside it."""

    def build(optimizer: Optimizer) -> dict[str, Any]:
        main = CosineAnnealingLR(optimizer, 1000)
        return {"main": main, "warmup": warmup(optimizer, *arguments)}

    return build


linear = tg.Schedule(
    beside_cosine(pytorch_warmup.LinearWarmup, 50), advance=dampened, warmup=50, **COMMON
)
exponential = tg.Schedule(
    beside_cosine(pytorch_warmup.ExponentialWarmup, 20), advance=dampened, **COMMON
)
untuned_linear = tg.Schedule(
    beside_cosine(pytorch_warmup.UntunedLinearWarmup),
    optimizer=optimizer,
    advance=dampened,
    **COMMON,
)
untuned_exponential = tg.Schedule(
    beside_cosine(pytorch_warmup.UntunedExponentialWarmup),
    optimizer=optimizer,
    advance=dampened,
    **COMMON,
)
rectified = tg.Schedule(
    beside_cosine(pytorch_warmup.RAdamWarmup), optimizer=optimizer, advance=dampened, **COMMON
)
