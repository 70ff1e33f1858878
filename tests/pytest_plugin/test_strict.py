"""--trainguard-strict."""

NOTE = "*note*first_step_learns: the first step of `warmup` is taken with a rate of zero*"


def test_a_note_is_shown_and_passes(project) -> None:
    """Without the option a note stands in the closing section and fails nothing."""
    project.declare("guard_x", "warmup")
    result = project.run("--trainguard-select=first_step_learns")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(NOTE)


def test_a_note_fails_when_strict(project) -> None:
    """With the option the same note is a failure, and its rerun command says so."""
    project.declare("guard_x", "warmup")
    result = project.run("--trainguard-select=first_step_learns", "--trainguard-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*rerun*pytest --trainguard --trainguard-strict*")
    result.stdout.no_fnmatch_line(NOTE)
