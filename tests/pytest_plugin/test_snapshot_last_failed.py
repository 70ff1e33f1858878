"""--lf: curves that left their band are run again, and the others' snapshots are left alone."""

from tests.pytest_plugin.curves import GUARD, TEST, Team, team  # noqa: F401 a fixture


def test_what_failed_runs_again(team: Team) -> None:  # noqa: F811
    """It alone, and nothing counts as unused."""
    fixed = TEST.replace("train)", "lambda: train(0.02))")
    team.write(guard_a=GUARD, test_b=fixed)
    team.judge("--snapshot-update").assert_outcomes(passed=2)
    kept = team.kept
    team.edit("train.py", "rate=0.01", "rate=0.0101")
    team.judge().assert_outcomes(passed=1, failed=1)
    result = team.judge("--lf")
    result.assert_outcomes(failed=1)
    assert "unused" not in result.stdout.str()
    assert team.kept == kept
    result = team.judge("--lf", "--snapshot-update")
    result.assert_outcomes(passed=1)
    assert set(team.kept) == set(kept)
