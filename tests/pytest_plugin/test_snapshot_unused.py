"""--snapshot-warn-unused, and what becomes of curves that nothing asks for any more."""

import pytest

from tests.pytest_plugin.curves import GUARD, LOSS, RATE, TEST, Team, team  # noqa: F401 a fixture

OTHER = "__snapshots__/guard_a/loop.curve_matches_snapshot[loss-cuda].curve"
VERSION = "__snapshots__/guard_a/loop.curve_matches_snapshot[loss-cpu-torch1.13].curve"
AMBER = "def test_number(snapshot):\n    assert snapshot == 3\n"


@pytest.fixture
def blessed(team: Team) -> Team:  # noqa: F811
    """Return a folder whose loss is kept, beside a rate that nothing asks for any more."""
    team.write(guard_a=GUARD.replace('"loss", "rate"', '"loss",'), test_b=AMBER)
    team.judge("--snapshot-update").assert_outcomes(passed=2)
    root = team.pytester.path
    for name in (RATE, OTHER, VERSION):
        (root / name).write_text(team.kept[LOSS], encoding="utf-8")
    return team


def test_an_unused_curve_is_reported(blessed: Team) -> None:
    """
    It fails the run, as syrupy has it, also where the path of the file is given.

    Those of another device or version are no matter.
    """
    result = blessed.judge_all("guard_a.py")
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    result.assert_outcomes(passed=outcomes["passed"], skipped=outcomes["skipped"])
    result.stdout.fnmatch_lines(["1 snapshot passed. 1 snapshot unused."])


def test_a_warning_may_be_enough(blessed: Team) -> None:
    """With --snapshot-warn-unused the run is well."""
    result = blessed.judge_all("--snapshot-warn-unused")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 snapshots passed. 1 snapshot unused."])


def test_an_update_deletes_it_alone(blessed: Team) -> None:
    """Neither the curve of another device nor that of another version."""
    before = set(blessed.kept)
    blessed.judge_all("--snapshot-update")
    assert before - set(blessed.kept) == {RATE}


@pytest.mark.parametrize(
    "options",
    [
        ("--trainguard", "-k", "loss_falls or test_number"),
        ("--trainguard", "--trainguard-select=loss_falls"),
        ("--trainguard", "guard_a.py::loop::loss_falls", "test_b.py"),
        (),
    ],
    ids=["-k", "select", "node id", "without --trainguard"],
)
def test_what_was_not_to_run_is_not_unused(blessed: Team, options: tuple[str, ...]) -> None:
    """A part of the run has nothing to say of the rest, and deletes none of it."""
    before = blessed.kept
    assert blessed.run(*options).ret == 0
    blessed.run(*options, "--snapshot-update")
    assert blessed.kept == before


def test_a_test_that_keeps_no_curve_any_more_is_noticed(team: Team) -> None:  # noqa: F811
    """Without --trainguard too: its snapshots belong to the test."""
    team.write(test_a=TEST + "    guard.curve('rate', train)\n")
    team.run("--snapshot-update").assert_outcomes(passed=1)
    team.write(test_a=TEST)
    result = team.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["1 snapshot passed. 1 snapshot unused."])


def test_curves_of_subjects_are_no_matter_to_other_snapshots(team: Team) -> None:  # noqa: F811
    """A file may have all kinds; without --trainguard nothing asks for the curve of the loop."""
    body = "def test_curve(guard):\n    guard.curve('loss', train)\n"
    team.write(test_a=GUARD.replace(', "rate"', ",") + AMBER + body)
    team.judge("--snapshot-update").assert_outcomes(passed=3)
    before = team.kept
    assert len(before) == 3
    result = team.run()
    assert (result.ret, team.run("--snapshot-update").ret) == (0, 0)
    result.stdout.fnmatch_lines(["2 snapshots passed."])
    assert team.kept == before
