"""
The schedules of transformers, for any warmup and total. Their first step at a rate of 0 is a note.

AdafactorSchedule is left out: it sets no rate, it reports the one that Adafactor chose.
"""

from typing import Any

import transformers.optimization as hf
from hypothesis import strategies as st
from torch.optim import Optimizer

import trainguard as tg

LENGTHS = {"warmup": st.integers(0, 100), "total": st.integers(160, 500)}
COMMON = {"base_rate": 1e-3, "peak": 1e-3}
DECAY = {"shape": "warmup-decay", "vary": LENGTHS, **COMMON}
GREEDY = {"shape": "plateau", "patience": 10, "metrics": (2.0, 1.0, 0.9)}


def of(factory: Any, **fixed: Any) -> Any:
    """Return a build function with the lengths as trainguard names them."""

    def build(optimizer: Optimizer, warmup: int, total: int) -> Any:
        return factory(optimizer, num_warmup_steps=warmup, num_training_steps=total, **fixed)

    return build


constant = tg.Schedule(hf.get_constant_schedule, shape="constant", **COMMON, total=200)
constant_warmup = tg.Schedule(
    hf.get_constant_schedule_with_warmup,
    arguments={"num_warmup_steps": 20},
    shape="warmup-constant",
    **COMMON,
    warmup=20,
    total=200,
)
linear = tg.Schedule(of(hf.get_linear_schedule_with_warmup), **DECAY)
cosine = tg.Schedule(of(hf.get_cosine_schedule_with_warmup), **DECAY)
cosine_restarts = tg.Schedule(
    of(hf.get_cosine_with_hard_restarts_schedule_with_warmup, num_cycles=3),
    shape="restarts",
    vary=LENGTHS,
    **COMMON,
)
cosine_restarts_as_decay = tg.Schedule(
    hf.get_cosine_with_hard_restarts_schedule_with_warmup,
    arguments={"num_warmup_steps": 20, "num_training_steps": 200, "num_cycles": 3},
    shape="warmup-decay",
    **COMMON,
    warmup=20,
    total=200,
    allow={
        "decay_never_rises": "it restarts, as its name says",
        "rate_changes_smoothly": "and does so within one step",
    },
)
polynomial = tg.Schedule(
    of(hf.get_polynomial_decay_schedule_with_warmup, power=2.0), **DECAY, floor=1e-7
)
inverse_root = tg.Schedule(
    hf.get_inverse_sqrt_schedule,
    arguments={"num_warmup_steps": 20},
    shape="warmup-decay",
    **COMMON,
    warmup=20,
    total=200,
)
cosine_floor = tg.Schedule(
    of(hf.get_cosine_with_min_lr_schedule_with_warmup, min_lr=1e-4), **DECAY, floor=1e-4
)
cosine_floor_rate = tg.Schedule(
    of(hf.get_cosine_with_min_lr_schedule_with_warmup, min_lr_rate=0.1), **DECAY, floor=1e-4
)
cosine_floor_warm = tg.Schedule(
    of(hf.get_cosine_with_min_lr_schedule_with_warmup_lr_rate, min_lr=1e-4, warmup_lr_rate=0.1),
    **DECAY,
    floor=1e-4,
)
warmup_stable_decay = tg.Schedule(
    of(hf.get_wsd_schedule, num_decay_steps=50, min_lr_ratio=0.1), **DECAY, floor=1e-4
)
warmup_stable_root = tg.Schedule(
    of(
        hf.get_wsd_schedule,
        num_decay_steps=50,
        min_lr_ratio=0.1,
        warmup_type="1-sqrt",
        decay_type="1-sqrt",
    ),
    **DECAY,
    floor=1e-4,
)
plateau = tg.Schedule(
    hf.get_reduce_on_plateau_schedule, shape="plateau", patience=10, metrics=(2.0, 1.0, 0.9)
)

# New in transformers 5: absent from the versions before.
if hasattr(hf, "get_greedy_schedule"):
    greedy = tg.Schedule(hf.get_greedy_schedule, base_rate=0.1, **GREEDY)
    greedy_smooth = tg.Schedule(
        hf.get_greedy_schedule,
        arguments={"smooth": True, "window_size": 5},
        base_rate=0.1,
        allow={"plateau_waits_for_patience": "one nan stays in the running average for ever"},
        **GREEDY,
    )
    greedy_low_rate = tg.Schedule(
        hf.get_greedy_schedule,
        base_rate=5e-5,
        allow={"plateau_waits_for_patience": "min_lr is 1e-3: a rate below it is never cut"},
        **GREEDY,
    )
