"""-n 2: curves are blessed and compared by two workers, and reported once."""

import pytest

from tests.pytest_plugin.curves import GUARD, LOSS, RATE, TEST, Team, team  # noqa: F401 a fixture

pytest.importorskip("xdist")


def test_two_workers_keep_curves(team: Team) -> None:  # noqa: F811
    """Each snapshot is whole, none is unused, and a departure is found as by one process."""
    team.write(guard_a=GUARD, test_a=TEST, test_b=TEST)
    team.judge("-n", "2", "--snapshot-update").assert_outcomes(passed=3)
    kept = team.kept
    assert set(kept) == {
        LOSS,
        RATE,
        *(f"__snapshots__/test_{n}/test_train[loss-cpu].curve" for n in "ab"),
    }
    team.judge().assert_outcomes(passed=3)
    team.edit("train.py", "rate=0.01", "rate=0.0101")
    result = team.judge("-n", "2")
    result.assert_outcomes(failed=3)
    assert result.stdout.str().count("left the band of its snapshot") >= 4
    assert "unused" not in result.stdout.str()
    assert team.kept == kept
