"""How many advances a learning-rate scheduler is laid out for, from what it was made with."""

import linecache
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from types import FrameType, FunctionType
from typing import Any

from torch.optim import lr_scheduler

from trainguard.observe.tools.user_line import user_frame

# The attribute of each class of torch that says after how many advances its schedule is over.
_LENGTHS = {
    lr_scheduler.OneCycleLR: "total_steps",
    lr_scheduler.CosineAnnealingLR: "T_max",
    lr_scheduler.PolynomialLR: "total_iters",
}
_ANNEALS = (lr_scheduler.CosineAnnealingLR, lr_scheduler.CosineAnnealingWarmRestarts)
# Names that a team gives to the length of a whole schedule, in a function of its own.
_TOTAL = re.compile(
    r"^(?:total|max|num|n|t)_?(?:total|train(?:ing)?|max)?_?(?:steps?|iters?|iterations?|updates?"
    r"|epochs?)$|^(?:epochs|total|horizon|t_max|t_total)$",
    re.IGNORECASE,
)

# A plain name, or an entry or attribute of one: what is calculated in the call is anything.
_TOLD = re.compile(r"\.step\(\s*(?:metrics\s*=\s*)?([A-Za-z_][\w.\[\]'\"/-]*)\s*[,)]")
_CUT = 0.5  # of a warmup: one that ends before that leaps by more than it has climbed
_LONGEST = 1e12  # advances: more than any run makes


def plan_length(scheduler: Any) -> tuple[int, str]:
    """Return after how many advances a schedule is over, and the setting that says so."""
    inner, milestones = getattr(scheduler, "_schedulers", ()), getattr(scheduler, "_milestones", ())
    if isinstance(scheduler, lr_scheduler.SequentialLR) and inner and milestones:
        length, setting = plan_length(inner[-1])
        whole = length and setting in _LENGTHS.values()
        return (milestones[-1] + length, f"milestones and {setting}") if whole else (0, "")
    if isinstance(scheduler, lr_scheduler.MultiStepLR):
        return _whole(max(scheduler.milestones, default=0)), "milestones"
    if isinstance(scheduler, lr_scheduler.StepLR):
        return _whole(getattr(scheduler, "step_size", 0)), "step_size"
    for kind, name in _LENGTHS.items():
        if isinstance(scheduler, kind):
            return _whole(getattr(scheduler, name, 0)), name
    if isinstance(scheduler, lr_scheduler.LambdaLR):
        return _named_length(getattr(scheduler, "lr_lambdas", ()))
    return 0, ""


def find_floor(scheduler: Any) -> tuple[float, float] | None:
    """Return the rate that a schedule anneals to, and the highest that it begins with; or None."""
    floor, given = getattr(scheduler, "eta_min", None), getattr(scheduler, "base_lrs", None)
    if not isinstance(scheduler, _ANNEALS) or not isinstance(given, list) or not given:
        return None
    rates = [rate for rate in (floor, *given) if isinstance(rate, int | float)]
    return (float(rates[0]), float(max(rates[1:]))) if len(rates) == 1 + len(given) else None


def find_cut_warmup(scheduler: Any) -> tuple[int, int, int] | None:
    """
    Return the advance at which a sequence leaves its warmup, those that it had, and those it needs.

    None where it is no sequence, or leaves none below half of its height, or of where it goes on.
    """
    parts, milestones = getattr(scheduler, "_schedulers", ()), getattr(scheduler, "_milestones", ())
    if not isinstance(scheduler, lr_scheduler.SequentialLR):
        return None
    for (part, after), begin, end in zip(
        pairwise(parts), (0, *milestones), milestones, strict=False
    ):
        known = isinstance(part, lr_scheduler.LinearLR) and not isinstance(
            after, lr_scheduler.LambdaLR
        )
        if known and end > begin:
            low, high, needs = part.start_factor, part.end_factor, part.total_iters
            share = (end - begin) / needs if needs > 0 else 1.0
            next_factor = getattr(after, "start_factor", getattr(after, "factor", 1.0))
            if low + (high - low) * share < _CUT * min(high, next_factor):
                return end, end - begin, needs
    return None


def told_expression(frame: FrameType) -> str:
    """Return what the running line of the user's code tells `step()`, where that is a name."""
    user = user_frame(frame)
    if user is None:
        return ""
    line = linecache.getline(user.f_code.co_filename, user.f_lineno, user.f_globals)
    found = _TOLD.search(line)
    return found[1] if found else ""


def _named_length(functions: Any) -> tuple[int, str]:
    """Return the one number that the functions of a LambdaLR know under the name of a length."""
    found = {
        (_whole(value), name)
        for function in functions
        for name, value in _known_values(function)
        if _TOTAL.match(name) and _whole(value) > 1
    }
    return found.pop() if len(found) == 1 else (0, "")


def _known_values(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a function was given or looks up when it is called."""
    if isinstance(function, partial):
        yield from function.keywords.items()
        function = function.func
    if isinstance(function, FunctionType):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                yield name, cell.cell_contents
            except ValueError:  # a name that is not bound yet
                continue
        space = function.__globals__
        yield from ((name, space[name]) for name in function.__code__.co_names if name in space)


def _whole(value: Any) -> int:
    """Return a number of advances, 0 for what is none."""
    return int(value) if type(value) in (int, float) and 0 < value < _LONGEST else 0
