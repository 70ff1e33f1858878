"""Excuses: strict, with a reason, and only for what is judged."""

ONE = "--trainguard-select=gradient_is_finite"


def test_an_excuse_is_an_expected_failure(project) -> None:
    """What breaks and is excused counts as xfailed, with the team's reason."""
    project.declare("guard_x", "excused")
    result = project.run(ONE, "-rx")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "1 subject, 1 invariant: 0 passed, 1 excused",
            "XFAIL guard_x.py::excused::gradient_is_finite* see ticket 7",
        ]
    )


def test_a_stale_excuse_fails(project) -> None:
    """An excuse for what no longer breaks fails, and says what to remove."""
    project.declare("guard_x", "stale")
    result = project.run(ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gradient_is_finite: `stale` is excused and does not break it",
            '  why       the excuse "once upon a time" is stale',
            "  silence   remove 'gradient_is_finite' from allow",
            "*0 passed, 1 with a stale excuse",
        ]
    )


def test_runxfail_shows_what_is_excused(project) -> None:
    """With pytest's --runxfail an excuse excuses nothing, and the report is there to be read."""
    project.declare("guard_x", "excused")
    result = project.run(ONE, "--runxfail")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("gradient_is_finite: the gradient of `excused` is not finite")


def test_an_excuse_of_what_is_not_judged(project) -> None:
    """An excuse of an invariant that needs what was not promised is a wrong declaration."""
    more = (
        "idle = tg.Loss(lambda x: (x ** 2).sum(), x=tg.real('B', -1, 1),\n"
        "               allow={'samples_do_not_mix': 'they do'})\n"
    )
    project.declare("guard_x", "warmup", more=more)
    result = project.run("--trainguard-select=first_step_learns,value_is_finite")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        "guard_x.py:*: idle excuses 'samples_do_not_mix', which is not judged on it:"
        " it needs reduction. Drop the excuse."
    )


def test_an_excuse_is_not_misread_under_select(project) -> None:
    """Selecting other invariants does not make an excuse inapplicable."""
    project.declare("guard_x", "excused")
    project.run("--trainguard-select=value_is_finite").assert_outcomes(passed=1)
