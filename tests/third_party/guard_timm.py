"""
The schedulers of timm, by updates and by epochs. They need a session of their own: `nox -s timm`.

An excuse here is a defect, or a hazard, of the package; docs/third_party_timm.md reproduces it.
"""

from typing import Any

import pytest
from torch.optim import Optimizer

import trainguard as tg

pytest.importorskip("timm")  # it is not in the environment of the other tests

from timm.scheduler import create_scheduler_v2

UPDATES, EPOCHS, WARMUP = 10, 30, 5
PROMISED: dict[str, Any] = {"base_rate": 1e-3, "peak": 1e-3, "floor": 1e-5}
OVERLAID = {
    "warmup_reaches_peak": "without warmup_prefix the decay has begun when the warmup is over",
    "warmup_is_short": "for the same reason: the promised peak is never reached",
}


def build(optimizer: Optimizer, **options: Any) -> Any:
    """Build a scheduler as timm's train.py does, and drop the number of epochs beside it."""
    fixed = {"num_epochs": EPOCHS, "updates_per_epoch": UPDATES, "min_lr": 1e-5}
    return create_scheduler_v2(optimizer, **fixed, **options)[0]


def by_update(shape: str = "warmup-decay", **options: Any) -> dict[str, Any]:
    """Return the arguments of a schedule that is advanced by `step_update`."""
    fixed = {"step_on_epochs": False, "warmup_epochs": WARMUP, **options}
    lengths = {"warmup": WARMUP * UPDATES, "total": EPOCHS * UPDATES}
    return {"arguments": fixed, "shape": shape, **lengths, **PROMISED}


def by_epoch(shape: str = "warmup-decay", **options: Any) -> dict[str, Any]:
    """Return the arguments of a schedule that is advanced by `step(epoch)`."""
    fixed = {"warmup_epochs": WARMUP, **options}
    lengths = {"warmup": WARMUP, "total": EPOCHS, "unit": "epoch"}
    return {"arguments": fixed, "shape": shape, **lengths, **PROMISED}


cosine = tg.Schedule(build, **by_update(sched="cosine"), allow=OVERLAID)
cosine_after_warmup = tg.Schedule(build, **by_update(sched="cosine", warmup_prefix=True))
cosine_by_epoch = tg.Schedule(build, **by_epoch(sched="cosine"), allow=OVERLAID)
cosine_by_epoch_after_warmup = tg.Schedule(build, **by_epoch(sched="cosine", warmup_prefix=True))
cycles = tg.Schedule(
    build,
    **by_update("restarts", sched="cosine", warmup_prefix=True, cycle_limit=3),
)
poly = tg.Schedule(build, **by_update(sched="poly"), allow=OVERLAID)
tanh = tg.Schedule(build, **by_update(sched="tanh"))
step = tg.Schedule(build, **by_update(sched="step", decay_epochs=10))
multistep = tg.Schedule(build, **by_epoch(sched="multistep", decay_milestones=[10, 20]))
warmup_stable_decay = tg.Schedule(build, **by_update(sched="wsd"))
plateau = tg.Schedule(
    build,
    arguments={"sched": "plateau", "patience_epochs": 3, "plateau_mode": "min"},
    shape="plateau",
    unit="epoch",
    patience=3,
    metrics=(2.0, 1.0, 0.9),
    base_rate=1e-3,
    allow={"resume_continues_the_schedule": "its state_dict() forgets the epochs already waited"},
)
