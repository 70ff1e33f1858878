"""Wrong declarations: each has its own sentence and place, and the rest of the run goes on."""

import pytest

X = "x=tg.real('B', -1, 1)"
WRONG = {
    f"tg.Loss(print, {X}, alow={{}})": "tg.Loss(alow={}) is neither a domain nor a Hypothesis*",
    "tg.Loss(print, x=tg.real('B', 6, -12))": (
        "tg.real got an empty range: low=6 is not below high=-12. Swap them: tg.real(..., -12, 6)."
    ),
    "tg.Loss(print, x=tg.real('B-', 0, 1))": "The shape 'B-' has the dimension 'B-', which is*",
    f"tg.Loss(print, {X}, dtypes='float31')": "dtypes has 'float31'. Did you mean 'float32'?",
    f"tg.Loss(print, {X}, allow={{'value_is_finit': 'x'}})": (
        "*names no loss invariant. Did you mean 'value_is_finite'?"
    ),
    f"tg.Loss(print, {X}, allow={{'value_is_finite': ''}})": "*gives no reason. Say in a few*",
    f"tg.Loss(print, {X}, limits={{'gradient_is_bounded': -1}})": "*is no limit. Give a number*",
    f"tg.Loss(print, {X}, timeout=0)": "tg.Loss(timeout=0) leaves no time.*",
    f"tg.Loss(3, {X})": "tg.Loss got 3, which cannot be called. Pass the function itself*",
    "tg.Loss(print)": "tg.Loss(print) declares no input with a gradient*",
    "tg.Schedule(float, sape='restarts')": (
        "tg.Schedule has no option 'sape'. Did you mean 'shape'?"
    ),
    "tg.Schedule(float, shape='restart')": "shape has 'restart'. Did you mean 'restarts'?",
    "tg.Schedule(float, floor=2, peak=1)": "tg.Schedule(floor=2, peak=1) has a floor above its*",
}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_declaration(project, code) -> None:
    """It is an error of collection with its place and its sentences, and stops nothing else."""
    project.declare("guard_a", more=f"\nwrong = {code}\n")
    project.declare("guard_b", "warmup")
    result = project.run("--trainguard-select=first_step_learns")
    result.assert_outcomes(errors=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if "ERROR collecting guard_a.py" in line)
    sentence, after = lines[start + 1 : start + 3]
    pytest.LineMatcher([sentence]).fnmatch_lines(f"guard_a.py:5: {WRONG[code]}")
    assert "= trainguard =" in after


def test_the_place_is_that_of_the_call(project) -> None:
    """In a declaration of several lines, the place is the line that holds what is wrong."""
    more = "wrong = tg.Loss(\n    print,\n    x=tg.real('B', 1, 0),\n)\n"
    project.declare("guard_a", more=more)
    project.run().stdout.fnmatch_lines("guard_a.py:6: tg.real got an empty range*")


def test_an_ordinary_run_shows_the_sentence_too(project) -> None:
    """In an ordinary test module a wrong declaration is as short without --trainguard."""
    project.declare("test_x", more="wrong = tg.Schedule(3)\n")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("test_x.py:4: tg.Schedule got 3, which cannot be called*")
    result.stdout.no_fnmatch_line("*Traceback*")


def test_another_error_of_collection_stops_the_run(project) -> None:
    """Where something else is wrong too, pytest stops before the first test, as it always does."""
    project.declare("guard_a", more="wrong = tg.Schedule(3)\n")
    project.declare("guard_b", "warmup")
    project.declare("guard_c", more="import no_such_module\n")
    result = project.run()
    result.assert_outcomes(errors=2)
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_x_stops_at_a_wrong_declaration(project) -> None:
    """-x stops at the first error, wrong declarations included."""
    project.declare("guard_a", more="wrong = tg.Schedule(3)\n")
    project.declare("guard_b", "warmup")
    result = project.run("-x")
    result.assert_outcomes(errors=1)
    assert result.ret != pytest.ExitCode.OK
