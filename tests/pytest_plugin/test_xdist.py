"""-n 2: the same verdicts, each subject observed by one worker, other tests shared out freely."""

import re

import pytest

pytest.importorskip("xdist")

TWO = "--trainguard-select=value_is_finite,gradient_is_finite,first_step_learns"


def without_time(result) -> list[str]:
    """Return the closing section without what differs from run to run."""
    text = result.stdout.str().partition("= trainguard =")[2]
    section = text.partition("\n")[2].partition("\n===")[0]
    kept = [line for line in section.splitlines() if "slowest" not in line]
    return [re.sub(r" in [\d.]+ s$", "", line) for line in kept]


def test_the_closing_section_is_the_same(project) -> None:
    """Two workers report the same counts, points and notes as one process."""
    project.declare("guard_x", "mse", "leak", "warmup", "excused")
    alone, shared = project.run(TWO), project.run(TWO, "-n", "2")
    assert alone.parseoutcomes().items() - shared.parseoutcomes().items() <= {("warnings", 1)}
    assert without_time(alone) == without_time(shared)
    assert "7 of 7 items ran" in shared.stdout.str()


def test_a_subject_stays_on_one_worker(project) -> None:
    """The items of a subject run on one worker; ordinary tests of one file run on both."""
    body = "import time\n" + "".join(f"def test_{i}(): time.sleep(0.1)\n" for i in range(12))
    project.pytester.makepyfile(test_plain=body)
    project.declare("guard_x", "mse", "leak")
    result = project.run("-n", "2", "-v")
    ran = re.findall(r"\[(gw\d)\] .*(?:PASSED|FAILED) (\S+)::", result.stdout.str())
    workers = {scope: {w for w, s in ran if s == scope} for _, scope in ran}
    assert len(workers["guard_x.py::mse"]) == len(workers["guard_x.py::leak"]) == 1
    assert workers["test_plain.py"] == {"gw0", "gw1"}


def test_other_ways_to_distribute_are_left_alone(project) -> None:
    """Where another --dist is asked for, xdist does as it is told."""
    project.declare("guard_x", "mse", "leak")
    result = project.run(TWO, "-n", "2", "--dist=loadfile")
    result.assert_outcomes(passed=3, failed=1)


def test_a_wrong_declaration_is_told_once(project) -> None:
    """Both workers meet a wrong declaration; it is reported once, and the rest is judged."""
    project.declare("guard_x", more="bad = tg.Loss(len, x=tg.real('B', 1, -1))")
    project.declare("guard_y", "mse")
    result = project.run(TWO, "-n", "2")
    result.assert_outcomes(passed=2, errors=1)


@pytest.mark.slow
def test_a_subject_that_ends_its_worker_is_tried_once(project) -> None:
    """The worker is replaced, the other items of the subject are skipped, the rest is judged."""
    more = (
        "import os\ndef die(x):\n    open('tries.txt', 'a').write('x')\n    os._exit(1)\n\n"
        "dying = tg.Loss(die, x=tg.real('B', -1, 1))\n"
    )
    project.declare("guard_x", "mse", more=more)
    result = project.run(TWO, "-n", "2", "-rs")
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    assert (project.pytester.path / "tries.txt").read_text(encoding="utf-8") == "x"
    ended = "its subject ended the process in guard_x.py::dying::value_is_finite"
    assert ended in " ".join(result.stdout.str().split())
