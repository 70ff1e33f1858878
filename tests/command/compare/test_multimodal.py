"""Row C12: a baseline against improvements that nobody had measured."""

from functools import cache
from pathlib import Path

import pytest

from fixtures.compared import multimodal
from tests.forks import trainguard_run
from trainguard.command.compare.interval import margin
from trainguard.command.compare.pairing import compare_sides
from trainguard.events.trace import Trace

SCRIPT = str(Path(multimodal.__file__))
SEEDS = range(3)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return what records the runs of a variant, once for each seed."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def runs(*switches: str) -> list[Trace]:
        """Record one run under each seed, each in a process of its own."""
        traces = []
        for seed in SEEDS:
            file = folder / f"{seed}"
            words = ("--no-probes", "--trace", str(file), SCRIPT, "--seed", str(seed), *switches)
            assert trainguard_run(folder, *words).code == 0
            traces.append(Trace.from_text(file.read_text(encoding="utf-8")))
        return traces

    return runs


@pytest.mark.parametrize("improvement", multimodal.WORSE)
def test_an_improvement_that_is_none(recorded, improvement: str) -> None:
    """
    What it makes worse is worse with certainty, over three pairs of runs.

    Its time may be open: these runs are not made in turns, and the machine may have load.
    """
    measure, allowed = multimodal.WORSE[improvement]
    found = compare_sides(recorded(), recorded(improvement), {measure: margin(measure, allowed)})
    (change,) = [change for change in found.changes if change.measure == measure]
    assert change.outcome in ("worse", "open" if measure == "time" else "worse"), found.changes


def test_the_baseline_against_itself(recorded) -> None:
    """Run again, it is no worse than the same margins; its loss is bit for bit the same."""
    # Not its time: these runs are not made in turns, and the machine may be busier for the second.
    margins = {n: margin(n, allowed) for n, allowed in multimodal.WORSE.values() if n != "time"}
    found = compare_sides(recorded(), recorded("--steps=40"), margins)
    assert found.worse == ()
    assert found.parted is None


def test_the_row_is_named() -> None:
    """The fixture says which of the failures that were met it shows."""
    assert "row C12" in multimodal.MET
