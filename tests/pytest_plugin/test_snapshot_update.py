"""--snapshot-update: blesses what is missing or outside its band, and refuses what is not well."""

import pytest

from tests.pytest_plugin.curves import GUARD, LOSS, RATE, TEST, Team, team  # noqa: F401 a fixture


def test_a_missing_snapshot_fails_and_writes_nothing(team: Team) -> None:  # noqa: F811
    """As syrupy does; with the option it is written, and then holds."""
    team.write(guard_a=GUARD)
    result = team.judge()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*the loss of `loop` has no snapshot", "*no file __snapshots__/guard_a/loop.*"]
    )
    result.stdout.fnmatch_lines(["2 snapshots failed."])
    assert team.kept == {}
    result = team.judge("--snapshot-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["2 snapshots generated."])
    kept = team.kept
    assert set(kept) == {LOSS, RATE}
    result = team.judge()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["2 snapshots passed."])
    assert team.kept == kept


def test_without_syrupy_a_snapshot_is_read(team: Team) -> None:  # noqa: F811
    """Only blessing needs its options, for items and for tests."""
    team.write(guard_a=GUARD.replace(', "rate"', ","), test_a=TEST)
    team.judge("--snapshot-update").assert_outcomes(passed=2)
    team.judge("-p", "no:syrupy").assert_outcomes(passed=2)
    team.edit("train.py", "rate=0.01", "rate=0.0101")
    team.judge("-p", "no:syrupy").assert_outcomes(failed=2)


def test_a_changed_rate_fails_until_it_is_blessed(team: Team) -> None:  # noqa: F811
    """What still holds is not written again."""
    team.write(guard_a=GUARD)
    team.judge("--snapshot-update").assert_outcomes(passed=1)
    before = team.kept
    team.judge("--snapshot-update").assert_outcomes(passed=1)
    assert team.kept == before
    team.edit("train.py", "rate=0.01", "rate=0.0101")
    result = team.judge()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the loss of `loop` left the band of its snapshot"])
    assert team.kept == before
    team.judge("--snapshot-update").assert_outcomes(passed=1)
    assert all(text != before[name] for name, text in team.kept.items())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("rate=0.01", "rate=1e9", "it is not finite at step"),
        ("        optimizer.zero_grad()\n", "", "gradients_start_empty is broken in the same run"),
        ("torch.manual_seed(0)", "torch.seed()", "run_is_reproducible is broken in the same run"),
    ],
    ids=["not finite", "another finding", "not reproducible"],
)
def test_what_is_not_well_is_not_blessed(team: Team, old: str, new: str, why: str) -> None:  # noqa: F811
    """The item fails with the reason, and nothing is written."""
    team.write(guard_a=GUARD.replace(', "rate"', ","))
    team.edit("train.py", old, new)
    result = team.judge("--snapshot-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the loss of `loop` was not blessed", f"*measured*{why}*"])
    assert team.kept == {}


def test_a_finding_that_is_excused_does_not_stand_in_the_way(team: Team) -> None:  # noqa: F811
    """What is known and accepted is no reason against a snapshot."""
    allow = 'allow={"gradients_start_empty": "summed on purpose"}'
    team.write(guard_a=GUARD.replace('("loss", "rate")', f'"loss", {allow}'))
    team.edit("train.py", "        optimizer.zero_grad()\n", "")
    team.judge("--snapshot-update").assert_outcomes(passed=1)
    assert set(team.kept) == {LOSS}


def test_a_test_function_is_blessed_alike(team: Team) -> None:  # noqa: F811
    """`guard.curve` needs no --trainguard; two runs of one test are kept apart."""
    more = (
        "    guard.curve('loss', lambda: train(0.02))\n    guard.curve('loss', train, name='b')\n"
    )
    team.write(test_a=TEST + more)
    result = team.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["curve_matches_snapshot: the loss of `test_train` has no snap*"])
    team.run("--snapshot-update").assert_outcomes(passed=1)
    names = [f"__snapshots__/test_a/test_train[{n}loss-cpu].curve" for n in ("", "1-", "b-")]
    assert sorted(team.kept) == sorted(names)
    team.run().assert_outcomes(passed=1)
    team.edit("test_a.py", "train(0.02)", "train(0.021)")
    result = team.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  rerun     pytest test_a.py::test_train"])


def test_a_function_that_returns_a_loop_is_blessed_too(team: Team) -> None:  # noqa: F811
    """Its snapshots are those of the test function."""
    body = "\n@tg.guard\ndef test_loop():\n    return tg.Loop(train, curve='loss')\n"
    team.write(test_a=GUARD.partition("loop =")[0] + body)
    team.judge("--snapshot-update").assert_outcomes(passed=1)
    assert set(team.kept) == {"__snapshots__/test_a/test_loop[loss-cpu].curve"}
    team.judge().assert_outcomes(passed=1)


def test_a_bad_file_fails_in_a_sentence(team: Team) -> None:  # noqa: F811
    """Neither a traceback nor a silent pass."""
    team.write(test_a=TEST)
    team.run("--snapshot-update").assert_outcomes(passed=1)
    (name,) = team.kept
    good = team.kept[name]
    (team.pytester.path / name).write_bytes(good.encode()[:400] + b"\xff")
    result = team.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the snapshot of the loss of `test_train` cannot be read"])
    shown = " ".join(result.stdout.str().split())
    assert f"{name}: it is truncated" in shown
    assert "Traceback" not in shown
    team.run("--snapshot-update").assert_outcomes(passed=1)
    assert team.kept == {name: good}


NAMED = """
import pytest
from train import train

@pytest.mark.parametrize("rate", [0.01, 0.02], ids=["x:1", "x1"])
def test_ids(guard, rate):
    guard.curve("loss", lambda: train(rate, steps=2), name="a/b")
"""


def test_each_name_has_a_file_of_its_own(team: Team) -> None:  # noqa: F811
    """What no file can be named by is escaped: what was blessed passes, and is not unused."""
    team.write(test_a=NAMED)
    team.run("--snapshot-update", "-W", "error::UserWarning").assert_outcomes(passed=2)
    kept = team.kept
    names = [f"__snapshots__/test_a/test_ids[{i}][a%2Fb-loss-cpu].curve" for i in ("x%3A1", "x1")]
    assert sorted(kept) == names
    result = team.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 snapshots passed."])
    team.run("-p", "no:syrupy", "-k", "x:1").assert_outcomes(passed=1, deselected=1)
    team.run("--snapshot-update", "-k", "x1").assert_outcomes(passed=1, deselected=1)
    assert team.kept == kept


def test_a_place_that_cannot_be_written(team: Team) -> None:  # noqa: F811
    """Where no file can be, as on a full disk, that is told, and is no fault of ours."""
    team.write(guard_a=GUARD)
    (team.pytester.path / LOSS).mkdir(parents=True)
    result = team.judge("--snapshot-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*could not be observed: its snapshot*", "*could not be written: *"]
    )
