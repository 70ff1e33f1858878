"""The way into the observers: each family has one, imported when it is first asked for."""

from typing import Any

from trainguard.core.settings import Settings
from trainguard.subjects.subject import Subject


def observe(family: str, subject: Subject, device: str, dtype: str, settings: Settings) -> Any:
    """Return the observation of a subject by a family; nothing runs until a trace is asked for."""
    return _observer(family).observe(subject, device, dtype, settings)


def _observer(family: str) -> Any:
    """Import the observer of a family."""
    match family:
        case "loss":
            from trainguard.observe.loss import observer as loss

            return loss
        case "schedule":
            from trainguard.observe.schedule import observer as schedule

            return schedule
        case "model":
            from trainguard.observe.model import observer as model

            return model
        case "loader":
            from trainguard.observe.loader import observer as loader

            return loader
        case "loop":
            from trainguard.observe.loop import observer as loop

            return loop
        case "ranks":
            from trainguard.observe.ranks import observer as ranks

            return ranks
        case "parallel":
            from trainguard.observe.parallel import observer as parallel

            return parallel
        case "checkpoint":
            from trainguard.observe.checkpoint import observer as checkpoint

            return checkpoint
        case _:
            from trainguard.observe.memory import observer as memory

            return memory
