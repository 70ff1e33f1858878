"""
Every scheduler of torch, alone and combined, with what its documentation promises.

An excuse here is a defect, or a hazard, of torch; docs/third_party_schedulers.md reproduces it.
"""

from typing import Any

from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import SWALR

import trainguard as tg

DECAY = {"shape": "warmup-decay", "base_rate": 0.1, "peak": 0.1, "total": 100}
CYCLE = {"shape": "restarts", "base_rate": 0.1, "peak": 0.1, "floor": 1e-3, "total": 100}
PLATEAU = {"shape": "plateau", "unit": "epoch", "patience": 5}

lambda_lr = tg.Schedule(lr.LambdaLR, arguments={"lr_lambda": lambda e: 0.95**e}, **DECAY)
multiplicative = tg.Schedule(
    lr.MultiplicativeLR, arguments={"lr_lambda": lambda _epoch: 0.95}, **DECAY
)
step_lr = tg.Schedule(lr.StepLR, arguments={"step_size": 30}, **DECAY)
multi_step = tg.Schedule(lr.MultiStepLR, arguments={"milestones": [30, 80]}, **DECAY)
exponential = tg.Schedule(lr.ExponentialLR, arguments={"gamma": 0.95}, **DECAY)
polynomial = tg.Schedule(lr.PolynomialLR, arguments={"total_iters": 100, "power": 2.0}, **DECAY)
constant = tg.Schedule(
    lr.ConstantLR, shape="warmup-constant", base_rate=0.1, peak=0.1, warmup=5, total=100
)
linear = tg.Schedule(
    lr.LinearLR, shape="warmup-constant", base_rate=0.1, peak=0.1, warmup=5, total=100
)
cosine = tg.Schedule(
    lr.CosineAnnealingLR,
    arguments={"eta_min": 1e-3},
    vary={"T_max": st.integers(100, 500)},
    **DECAY,
    floor=1e-3,
)
cosine_cycles = tg.Schedule(
    lr.CosineAnnealingLR, arguments={"T_max": 7, "eta_min": 1e-3}, **{**CYCLE, "total": 1000}
)
warm_restarts = tg.Schedule(
    lr.CosineAnnealingWarmRestarts, arguments={"T_0": 25, "eta_min": 1e-3}, **CYCLE
)
cyclic = tg.Schedule(
    lr.CyclicLR,
    arguments={"base_lr": 1e-3, "max_lr": 0.1, "step_size_up": 10, "cycle_momentum": False},
    vary={"mode": st.sampled_from(["triangular", "triangular2", "exp_range"])},
    **CYCLE,
)


def build_one_cycle(optimizer: Optimizer, total: int, anneal: str, three: bool) -> Any:
    """Return one cycle of a drawn length."""
    return lr.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=total, anneal_strategy=anneal, three_phase=three
    )


one_cycle = tg.Schedule(
    build_one_cycle,
    vary={
        "total": st.integers(10, 500),
        "anneal": st.sampled_from(["cos", "linear"]),
        "three": st.booleans(),
    },
    shape="one-cycle",
    peak=0.1,
)
one_cycle_too_short = tg.Schedule(
    lr.OneCycleLR,
    arguments={"max_lr": 0.1, "total_steps": 100},
    shape="one-cycle",
    peak=0.1,
    total=150,
    allow={"horizon_matches_units": "OneCycleLR raises at step 101: its length must be the run's"},
)

plateau = tg.Schedule(
    lr.ReduceLROnPlateau, arguments={"patience": 5}, metrics=(2.0, 1.0, 0.9), **PLATEAU
)
plateau_maximum = tg.Schedule(
    lr.ReduceLROnPlateau,
    arguments={"patience": 5, "mode": "max", "cooldown": 3},
    mode="max",
    metrics=(0.1, 0.5, 0.6),
    **PLATEAU,
)
plateau_absolute = tg.Schedule(
    lr.ReduceLROnPlateau,
    arguments={"patience": 5, "threshold_mode": "abs"},
    metrics=(-1.0, -2.0),
    **PLATEAU,
)
plateau_below_zero = tg.Schedule(
    lr.ReduceLROnPlateau,
    arguments={"patience": 5},
    metrics=(-1.0, -2.0),
    allow={"plateau_waits_for_patience": "best * (1 - threshold) is above a best below zero"},
    **PLATEAU,
)

swa = tg.Schedule(
    SWALR, arguments={"swa_lr": 0.05, "anneal_epochs": 10}, base_rate=0.1, floor=0.05, total=100
)
swa_upwards = tg.Schedule(
    SWALR, arguments={"swa_lr": 0.05, "anneal_epochs": 10}, base_rate=0.01, peak=0.05, total=100
)


def warmup_then(optimizer: Optimizer, second: Any, warmup: int = 10) -> Any:
    """Return a linear warmup followed by a scheduler."""
    first = lr.LinearLR(optimizer, start_factor=0.1, total_iters=warmup)
    return lr.SequentialLR(optimizer, [first, second], milestones=[warmup])


def build_warmup_cosine(optimizer: Optimizer, warmup: int, total: int) -> Any:
    """Return the commonest schedule of all, of drawn lengths."""
    return warmup_then(optimizer, lr.CosineAnnealingLR(optimizer, total - warmup), warmup)


warmup_cosine = tg.Schedule(
    build_warmup_cosine,
    vary={"warmup": st.integers(1, 100), "total": st.integers(101, 500)},
    shape="warmup-decay",
    base_rate=0.1,
    peak=0.1,
)
warmup_exponential = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.ExponentialLR(optimizer, 0.97)), **DECAY, warmup=10
)
warmup_steps = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.StepLR(optimizer, 30)), **DECAY, warmup=10
)
warmup_polynomial = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.PolynomialLR(optimizer, 90)), **DECAY, warmup=10
)
warmup_lambda = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.LambdaLR(optimizer, lambda e: 0.97**e)),
    **DECAY,
    warmup=10,
)
warmup_restarts = tg.Schedule(
    lambda optimizer: warmup_then(
        optimizer, lr.CosineAnnealingWarmRestarts(optimizer, 30, eta_min=1e-3)
    ),
    **CYCLE,
    warmup=10,
)
warmup_one_cycle = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.OneCycleLR(optimizer, 0.1, total_steps=90)),
    base_rate=0.1,
    peak=0.1,
    total=100,
)
warmup_multiplicative = tg.Schedule(
    lambda optimizer: warmup_then(optimizer, lr.MultiplicativeLR(optimizer, lambda _epoch: 0.97)),
    **DECAY,
    warmup=10,
    allow={
        "warmup_reaches_peak": "MultiplicativeLR goes on from the warmup's last rate",
        "warmup_is_short": "so the peak is never reached",
    },
)


def build_trapezoid(optimizer: Optimizer) -> Any:
    """Return three schedulers in a row."""
    parts = [
        lr.LinearLR(optimizer, 0.01, 1.0, 10),
        lr.ConstantLR(optimizer, 1.0, 80),
        lr.LinearLR(optimizer, 1.0, 0.1, 10),
    ]
    return lr.SequentialLR(optimizer, parts, milestones=[10, 90])


trapezoid = tg.Schedule(build_trapezoid, **DECAY, floor=0.01, warmup=10)


def build_then_swa(optimizer: Optimizer) -> Any:
    """Return a cosine, and an average of weights at a constant rate after it."""
    parts = [lr.CosineAnnealingLR(optimizer, 75), SWALR(optimizer, 0.05, 10)]
    return lr.SequentialLR(optimizer, parts, milestones=[75])


then_swa = tg.Schedule(build_then_swa, base_rate=0.1, peak=0.1, total=100)


def build_chained(optimizer: Optimizer) -> Any:
    """Return a warmup and a cosine whose factors multiply."""
    parts = [lr.LinearLR(optimizer, 0.1, 1.0, 10), lr.CosineAnnealingLR(optimizer, 100)]
    return lr.ChainedScheduler(parts)


chained = tg.Schedule(build_chained, shape="warmup-decay", base_rate=0.1, total=100)


def build_several(optimizer: Optimizer) -> Any:
    """Return the same two without a ChainedScheduler, each stepped by the loop."""
    return [lr.LinearLR(optimizer, 0.1, 1.0, 10), lr.CosineAnnealingLR(optimizer, 100)]


several = tg.Schedule(build_several, shape="warmup-decay", base_rate=0.1, total=100)


def build_groups() -> Optimizer:
    """Return an optimizer with two groups of parameters."""
    body, head = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": body.parameters(), "lr": 0.01}, {"params": head.parameters()}]
    return SGD(groups, lr=0.1, momentum=0.9)


groups_cosine = tg.Schedule(
    lr.CosineAnnealingLR, arguments={"T_max": 100}, optimizer=build_groups, **DECAY
)
groups_one_cycle = tg.Schedule(
    lr.OneCycleLR,
    arguments={"max_lr": [0.01, 0.1], "total_steps": 100},
    optimizer=build_groups,
    shape="one-cycle",
    peak=0.1,
    total=100,
)
