"""
GradualWarmupScheduler of warmup-scheduler 0.3, with each kind of scheduler after the warmup.

An excuse here is a defect of the package; docs/third_party_schedulers.md reproduces it.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as lr
from warmup_scheduler import GradualWarmupScheduler

import trainguard as tg

FROZEN = "get_last_lr() stays at the warmup's last rate once the warmup is over"
COPIED = "the inner scheduler is pickled with a copy of its optimizer, and sets that one's rates"
WRAPPED = {"reported_rate_is_in_force": FROZEN, "resume_continues_the_schedule": COPIED}
COMMON = {"peak": 0.1, "warmup": 10, "total": 100}


def then(after: Callable[[Optimizer], Any], multiplier: float = 8.0) -> Any:
    """Return a build function: the warmup, then another scheduler."""

    def build(optimizer: Optimizer) -> Any:
        return GradualWarmupScheduler(optimizer, multiplier, 10, after(optimizer))

    return build


alone = tg.Schedule(
    lambda optimizer: GradualWarmupScheduler(optimizer, 8.0, 10),
    shape="warmup-constant",
    base_rate=0.0125,
    **COMMON,
)
from_zero = tg.Schedule(
    lambda optimizer: GradualWarmupScheduler(optimizer, 1.0, 10),
    shape="warmup-constant",
    base_rate=0.1,
    **COMMON,
)
from_zero_per_epoch = tg.Schedule(
    lambda optimizer: GradualWarmupScheduler(optimizer, 1.0, 10),
    unit="epoch",
    shape="warmup-constant",
    base_rate=0.1,
    allow={"first_step_learns": "a multiplier of 1 starts at a rate of 0, for a whole epoch"},
    **COMMON,
)
cosine = tg.Schedule(
    then(lambda optimizer: lr.CosineAnnealingLR(optimizer, 90)),
    shape="warmup-decay",
    base_rate=0.0125,
    allow=WRAPPED,
    **COMMON,
)
steps = tg.Schedule(
    then(lambda optimizer: lr.StepLR(optimizer, 30)),
    shape="warmup-decay",
    base_rate=0.0125,
    allow=WRAPPED,
    **COMMON,
)
exponential = tg.Schedule(
    then(lambda optimizer: lr.ExponentialLR(optimizer, 0.97)),
    shape="warmup-decay",
    base_rate=0.0125,
    allow=WRAPPED,
    **COMMON,
)
steps_by_number = tg.Schedule(
    then(lambda optimizer: lr.StepLR(optimizer, 30)),
    advance=lambda scheduler, epoch: scheduler.step(epoch + 1),
    unit="epoch",
    shape="warmup-decay",
    base_rate=0.0125,
    allow=WRAPPED,
    **COMMON,
)
factor = tg.Schedule(
    then(lambda optimizer: lr.LambdaLR(optimizer, lambda epoch: 0.97**epoch)),
    shape="warmup-decay",
    base_rate=0.0125,
    allow={
        "reported_rate_is_in_force": FROZEN,
        "resume_continues_the_schedule": "the inner LambdaLR is pickled whole, its lambda included",
    },
    **COMMON,
)
plateau = tg.Schedule(
    then(lambda optimizer: lr.ReduceLROnPlateau(optimizer, patience=10)),
    shape="plateau",
    base_rate=0.0125,
    patience=10,
    metrics=(2.0, 1.0, 0.9),
    allow={"resume_continues_the_schedule": COPIED},
    **COMMON,
)
plateau_from_zero = tg.Schedule(
    then(lambda optimizer: lr.ReduceLROnPlateau(optimizer, patience=10), multiplier=1.0),
    shape="plateau",
    base_rate=0.1,
    patience=10,
    metrics=(2.0, 1.0, 0.9),
    allow={
        "warmup_rises": "before a ReduceLROnPlateau, a multiplier of 1 means no warmup at all",
        "resume_continues_the_schedule": COPIED,
    },
    **COMMON,
)
