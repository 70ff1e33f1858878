"""
trainguard: a pytest plugin that turns the silent failures of model training into failing tests.

The facade resolves its few names lazily: importing `trainguard` loads neither torch, numpy nor
Hypothesis, so that the plugin costs nothing where it is installed and not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainguard.budget import Budget
    from trainguard.catalogue import invariant
    from trainguard.checkpoint import Checkpoint
    from trainguard.domain import bins, choice, integer, mask, real
    from trainguard.fault import DeclarationError, SubjectError
    from trainguard.finding import Finding, Rank
    from trainguard.judge import Broken, check
    from trainguard.loader import Loader
    from trainguard.loop import Loop, Script
    from trainguard.loss import Loss
    from trainguard.model import Model
    from trainguard.recording import record
    from trainguard.schedule import Schedule
    from trainguard.step import Step
    from trainguard.subject import guard
    from trainguard.trace import Sample, Tick, Trace, Usage

__version__ = "0.1.0"

__all__ = [
    "Broken",
    "Budget",
    "Checkpoint",
    "DeclarationError",
    "Finding",
    "Loader",
    "Loop",
    "Loss",
    "Model",
    "Rank",
    "Sample",
    "Schedule",
    "Script",
    "Step",
    "SubjectError",
    "Tick",
    "Trace",
    "Usage",
    "bins",
    "check",
    "choice",
    "guard",
    "integer",
    "invariant",
    "mask",
    "real",
    "record",
]

# No module may bear the name of a public function: importing it would shadow the function.
_HOMES = {
    "budget": ("Budget",),
    "catalogue": ("invariant",),
    "checkpoint": ("Checkpoint",),
    "domain": ("bins", "choice", "integer", "mask", "real"),
    "fault": ("DeclarationError", "SubjectError"),
    "finding": ("Finding", "Rank"),
    "judge": ("Broken", "check"),
    "loader": ("Loader",),
    "loop": ("Loop", "Script"),
    "loss": ("Loss",),
    "model": ("Model",),
    "recording": ("record",),
    "schedule": ("Schedule",),
    "step": ("Step",),
    "subject": ("guard",),
    "trace": ("Sample", "Tick", "Trace", "Usage"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import the module that defines `name` on its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trainguard' has no attribute {name!r}")
    value: object = getattr(import_module(f"trainguard.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # resolved once: the next access does not come here
    return value


def __dir__() -> list[str]:
    """List the public names, resolved or not."""
    return sorted([*__all__, "__version__"])
