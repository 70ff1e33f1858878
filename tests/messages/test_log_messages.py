"""What a user of `trainguard diagnose` reads of a log: whole messages, as they are printed."""

from importlib import import_module
from pathlib import Path

import pytest

from trainguard.core.finding import Rank
from trainguard.core.settings import Settings
from trainguard.judging.judge import judge_run
from trainguard.observe.log.entry import read_log
from trainguard.report.text import render
from trainguard.subjects.log import Log

FILES = sorted(Path(__file__).parents[2].glob("fixtures/broken/log/guard_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("guard_"))
def test_what_is_said_of_a_log(file: Path, snapshot: object) -> None:
    """Each finding of a broken log, with its rank; ASCII, at most ten lines of 100 columns."""
    module = import_module(f"fixtures.broken.log.{file.stem}")
    log: Log = module.log
    told = []
    for verdict in judge_run(log, read_log(log), Settings(), "trainguard diagnose LOG"):
        for finding in verdict.findings:
            text = render(finding, verdict)
            assert text.isascii()
            assert all(len(line) <= 100 for line in text.splitlines())
            assert len(text.splitlines()) <= 10
            told.append(f"{'broken' if finding.rank is Rank.BROKEN else 'note'}\n{text}")
    assert "\n\n".join(told) == snapshot
