"""What is asked of `trainguard run`."""

from dataclasses import dataclass, field
from pathlib import Path

from trainguard.core.settings import Settings
from trainguard.judging.baseline import Baseline
from trainguard.subjects.loop import Script


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """
    What the command line asks for.

    command: the whole command line.
    judging: whether to judge what was recorded, and to report it.
    components: whether to tell the losses, models and schedules of the user's own in the trace.
    verbose: whether to print what steps were asked, and what they answered.
    what_if: whether it is run for these questions alone: without accelerators, however long they
        take.
    formats: what the report is written as, and to which file; printed where that is None.
    live: whether findings are printed as soon as they are certain. fail_fast: whether the first one
        ends the run. events: the file that gets a line for each finding. baseline: what is known.
    """

    subject: Script
    settings: Settings = field(default_factory=Settings)
    timeout: float | None = None
    json: Path | None = None
    trace: Path | None = None
    command: str = ""
    judging: bool = True
    components: bool = False
    verbose: bool = False
    what_if: bool = False
    formats: tuple[tuple[str, Path | None], ...] = ()
    live: bool = False
    fail_fast: bool = False
    events: Path | None = None
    baseline: Baseline = field(default_factory=Baseline)
    root: Path = field(default_factory=Path.cwd)  # before the script goes elsewhere
