"""What became of one invariant on one subject, as data: `report` puts it into words."""

from dataclasses import dataclass
from typing import Final, Literal

from trainguard.core.catalogue import Invariant
from trainguard.core.finding import Finding, Rank
from trainguard.judging.variant import Config
from trainguard.subjects.subject import Subject

Outcome = Literal["passed", "excused", "stale", "broken", "skipped"]
FAILING: Final = ("broken", "stale")


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What became of one invariant on one subject.

    findings: all that was found, notes included. strict: whether notes fail too.
    reason: why it was skipped, or the excuse of what is excused.
    rerun: the command that judges it again. silence: how NAME is excused there, where that is not
        by an argument of the declaration.
    pictures: files that show what was found.
    points: how many points were looked at; seconds: how long that took.
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
