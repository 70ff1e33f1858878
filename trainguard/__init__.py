"""
trainguard: a pytest plugin that turns the silent failures of model training into failing tests.

The facade resolves its few names lazily: importing `trainguard` loads neither torch, numpy nor
Hypothesis, so that the plugin costs nothing where it is installed and not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainguard.api.check import Broken, check
    from trainguard.api.recording import record
    from trainguard.core.catalogue import invariant
    from trainguard.core.errors import DeclarationError, SubjectError
    from trainguard.core.finding import Finding, Rank
    from trainguard.core.measure import Measure, Place
    from trainguard.events.loop import Step
    from trainguard.events.trace import Sample, Tick, Trace, Usage
    from trainguard.subjects.budget import Budget
    from trainguard.subjects.checkpoint import Checkpoint
    from trainguard.subjects.domain import bins, choice, integer, mask, real
    from trainguard.subjects.loader import Loader
    from trainguard.subjects.log import Log
    from trainguard.subjects.loop import Loop, Script
    from trainguard.subjects.loss import Loss
    from trainguard.subjects.model import Model
    from trainguard.subjects.parallel import Parallel
    from trainguard.subjects.relation import Relation
    from trainguard.subjects.schedule import Schedule
    from trainguard.subjects.subject import guard

__version__ = "0.1.0"

__all__ = [
    "Broken",
    "Budget",
    "Checkpoint",
    "DeclarationError",
    "Finding",
    "Loader",
    "Log",
    "Loop",
    "Loss",
    "Measure",
    "Model",
    "Parallel",
    "Place",
    "Rank",
    "Relation",
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
    "core.catalogue": ("invariant",),
    "core.errors": ("DeclarationError", "SubjectError"),
    "core.finding": ("Finding", "Rank"),
    "core.measure": ("Measure", "Place"),
    "events.loop": ("Step",),
    "events.trace": ("Sample", "Tick", "Trace", "Usage"),
    "api.check": ("Broken", "check"),
    "api.recording": ("record",),
    "subjects.budget": ("Budget",),
    "subjects.checkpoint": ("Checkpoint",),
    "subjects.domain": ("bins", "choice", "integer", "mask", "real"),
    "subjects.loader": ("Loader",),
    "subjects.log": ("Log",),
    "subjects.loop": ("Loop", "Script"),
    "subjects.loss": ("Loss",),
    "subjects.model": ("Model",),
    "subjects.parallel": ("Parallel",),
    "subjects.relation": ("Relation",),
    "subjects.schedule": ("Schedule",),
    "subjects.subject": ("guard",),
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
