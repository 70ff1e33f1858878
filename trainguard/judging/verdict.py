"""What became of one invariant on one subject, as data: `report` puts it into words."""

from dataclasses import dataclass
from typing import Final, Literal

from trainguard.core.catalogue import Invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.settings import Settings
from trainguard.subjects.loss import LOW_PRECISION
from trainguard.subjects.subject import Subject

_ON_NO_DEVICE = (
    "schedule",
    "loader",
    "loop",
    "ranks",
    "parallel",
    "checkpoint",
    "log",
)  # families that are observed in one way only
Outcome = Literal["passed", "excused", "known", "stale", "broken", "skipped"]
FAILING: Final = ("broken", "stale")


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What became of one invariant on one subject.

    findings: all that was found, notes included. strict: whether notes fail too.
    known: what was found too, and is in the baseline; mended: what is only in the baseline.
    reason: why it was skipped, or the excuse of what is excused.
    rerun: the command that judges it again. silence: how NAME is excused there, where that is not
        by an argument of the declaration.
    pictures: files that show what was found.
    points: how many points were looked at; seconds: how long that took.
    crash: what the judgement raised, where the others go on without it.
    """

    subject: Subject
    invariant: Invariant
    config: Config
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    strict: bool = False
    reason: str = ""
    rerun: str = ""
    silence: str = ""
    pictures: tuple[str, ...] = ()
    points: int = 0
    seconds: float = 0.0
    known: tuple[Finding, ...] = ()
    mended: tuple[str, ...] = ()
    crash: Exception | None = None

    @property
    def label(self) -> str:
        """The invariant and what it was judged on: `loss.value_is_finite[cpu-float32]`."""
        return f"{self.invariant.key}{f'[{self.config}]' if str(self.config) else ''}"

    @property
    def fails(self) -> bool:
        """Whether it fails the run."""
        return self.outcome in FAILING

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that do not fail the item by themselves."""
        return tuple(finding for finding in self.findings if finding.rank is Rank.NOTE)

    @property
    def breaches(self) -> tuple[Finding, ...]:
        """The findings that fail the item: all that are broken, and notes where they fail too."""
        return tuple(f for f in self.findings if self.strict or f.rank is Rank.BROKEN)
