"""@tg.guard: test functions that return a subject built from fixtures."""

import pytest

MADE = """
import pytest

@pytest.fixture
def scale():
    return 2.0

@tg.guard
def test_made(scale, tmp_path):
    assert tmp_path.is_dir()
    return tg.Loss(lambda x: (scale * x ** 2).sum(), x=tg.real("B", -1, 1), name="made")
"""
LEAKS = """
@tg.guard
def test_leaks():
    return tg.Loss(lambda x: torch.where(x > 0, x.abs().sqrt(), x).sum(), x=tg.real("B", -1, 1),
                   name="leaks"{more})
"""
FEW = "--trainguard-select=value_is_finite,gradient_is_finite,gradient_is_bounded"


def test_fixtures_build_the_subject(project) -> None:
    """One item gets its fixtures and judges every invariant of the subject."""
    project.declare("test_x", more=MADE)
    result = project.run(FEW)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 subject, 3 invariants: 3 passed", "1 of 1 item ran*"])


def test_it_is_not_run_without_the_switch(project) -> None:
    """Without --trainguard such a function is no test."""
    project.declare("test_x", more=LEAKS.format(more=""))
    result = project.pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines("trainguard: 1 subject was not judged, pass --trainguard")


def test_all_findings_are_raised_together(project) -> None:
    """A failure holds the report of each invariant that broke, and no traceback."""
    project.declare("test_x", more=LEAKS.format(more=""))
    result = project.run(FEW)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gradient_is_finite: the gradient of `leaks` is not finite",
            "  rerun     pytest --trainguard * test_x.py::test_leaks",
            "gradient_is_bounded: the gradient of `leaks` explodes",
            "1 subject, 3 invariants: 1 passed, 2 broken",
        ]
    )
    result.stdout.no_fnmatch_line("*session.py*")


def test_excuses_count(project) -> None:
    """An excused invariant is counted, and the others still decide."""
    more = ", allow={'gradient_is_finite': 'known', 'gradient_is_bounded': 'known'}"
    project.declare("test_x", more=LEAKS.format(more=more))
    result = project.run(FEW)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("1 subject, 3 invariants: 1 passed, 2 excused")


def test_parametrized_and_in_a_class(project) -> None:
    """Such functions may be parametrized, and may be methods."""
    project.declare(
        "test_x",
        more="""
import pytest

class TestRates:
    @pytest.mark.parametrize("rate", [1e-3, 1e-4])
    @tg.guard
    def test_flat(self, rate):
        return tg.Schedule(lambda step: rate)
""",
    )
    result = project.run("-m", "trainguard", "-v", "--trainguard-select=first_step_learns")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("test_x.py::TestRates::test_flat[[]0.001[]] PASSED*")


WRONG = {
    "return 3": "@tg.guard: test_wrong returned 3, which is no subject. Return a tg.Loss*",
    "pass": "@tg.guard: test_wrong returned None, which is no subject.*",
    "return tg.real('B', 2, 1)": "tg.real got an empty range: low=2 is not below*",
    "raise KeyError('lost')": "E * KeyError: 'lost'",
    "pytest.fail('on purpose')": "*on purpose*",
}


@pytest.mark.parametrize("body", WRONG)
def test_what_is_no_subject(project, body) -> None:
    """What returns no subject, or raises, is a failure of the function that says so."""
    project.declare("test_x", more=f"import pytest\n@tg.guard\ndef test_wrong():\n    {body}\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(WRONG[body])
    result.stdout.no_fnmatch_line("*trainguard itself failed*")


def test_a_subject_that_cannot_be_observed(project) -> None:
    """The fault of the subject is told with the user's own traceback, once."""
    more = "@tg.guard\ndef test_wrong():\n    return raising\n"
    project.declare("library", "raising")
    project.declare("test_x", more=f"import library\n{more.replace('raising', 'library.raising')}")
    result = project.run(FEW)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*could not be observed: it raised RuntimeError: no such luck", "*in quarrel*"]
    )


def test_skipping_is_respected(project) -> None:
    """A function may skip itself."""
    more = "import pytest\n@tg.guard\ndef test_later():\n    pytest.skip('no data')\n"
    project.declare("test_x", more=more)
    project.run().assert_outcomes(skipped=1)


def test_a_name_that_is_no_test(project) -> None:
    """A function that pytest would not collect is a wrong declaration, not a silent gap."""
    project.declare("guard_x", more="@tg.guard\ndef made():\n    return tg.Schedule(float)\n")
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*@tg.guard is on 'made', which pytest does not take for a test.*")


def test_a_unittest_method(project) -> None:
    """A method of a unittest.TestCase is refused with a sentence."""
    more = (
        "import unittest\nclass TestOld(unittest.TestCase):\n"
        "    @tg.guard\n    def test_it(self):\n        return tg.Schedule(float)\n"
    )
    project.declare("test_x", more=more)
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*test_it, a method of a unittest.TestCase. Make it a function*")
