"""The device and dtype that something is judged on: the brackets of a node id."""

from dataclasses import dataclass

from trainguard.core.catalogue import Invariant
from trainguard.core.settings import Settings
from trainguard.subjects.loss import LOW_PRECISION
from trainguard.subjects.subject import Subject

_ON_NO_DEVICE = (
    "schedule",
    "loader",
    "loop",
    "checkpoint",
)  # families that are observed in one way only


@dataclass(frozen=True, slots=True)
class Config:
    """The device and dtype that an item is judged on; an empty one where it does not matter."""

    device: str = ""
    dtype: str = ""

    def __str__(self) -> str:
        """Return what stands in the brackets of a node id."""
        return "-".join(part for part in (self.device, self.dtype) if part)


def observed_as(subject: Subject, config: Config, family: str = "") -> Config:
    """Return the configuration that is observed for an item: many subjects have only one."""
    if (family or subject.family) in _ON_NO_DEVICE:
        return Config()
    return Config(config.device or "cpu", config.dtype or reference_dtype(subject))


def reference_dtype(subject: Subject) -> str:
    """Return the dtype for what is judged once: the first declared one of full precision."""
    declared = _dtypes(subject)
    return next((dtype for dtype in declared if dtype not in LOW_PRECISION), "float32")


def configs(
    made: Invariant, subject: Subject, settings: Settings, devices: tuple[str, ...]
) -> list[Config]:
    """List the configurations that an invariant is judged on for a subject."""
    declared = _dtypes(subject)
    dtypes = [dtype for dtype in declared if not settings.dtypes or dtype in settings.dtypes]
    if made.per == "subject" or made.family in _ON_NO_DEVICE:
        return [Config()]
    if made.per == "device":
        return [Config(device) for device in devices]
    if made.per == "low precision":
        dtypes = [dtype for dtype in dtypes if dtype in LOW_PRECISION]
    if not declared:  # a run, whose dtypes are its own affair
        return [Config()]
    return [Config(device, dtype) for device in devices for dtype in dtypes]


def _dtypes(subject: Subject) -> tuple[str, ...]:
    """Return the dtypes that a subject declares, which losses and models do."""
    declared: tuple[str, ...] = getattr(subject, "dtypes", ())
    return declared
