"""--trainguard: what is collected with it, and what an ordinary run sees."""

import pytest


def test_guard_files_are_collected(project) -> None:
    """Node ids read as sentences: file, subject, invariant, device and dtype."""
    project.declare("guard_x", "mse", "warmup")
    ids = project.collected()
    assert "guard_x.py::mse::value_is_finite[cpu-float32]" in ids
    assert "guard_x.py::mse::gradient_is_alive[cpu]" in ids
    assert "guard_x.py::warmup::first_step_learns" in ids


def test_guard_files_are_ignored_without_it(project) -> None:
    """Plain pytest does not even import a guard file."""
    project.declare("guard_x", more="raise RuntimeError")
    project.pytester.makepyfile(test_x="def test_plain(): pass")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*trainguard:*")


def test_subjects_in_test_modules(project) -> None:
    """Subjects in an ordinary test module are items beside its tests."""
    project.declare("test_x", "mse", more="def test_plain(): pass")
    result = project.run("--trainguard-select=value_is_finite")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_unjudged_subjects_are_counted(project, workers) -> None:
    """Without --trainguard one line says how many subjects were left, each counted once."""
    guarded = "@tg.guard\ndef test_made():\n    return mse\n"
    project.declare("test_x", "mse", "leak", more=guarded)
    project.pytester.makepyfile(test_y="from test_x import mse\ndef test_plain(): pass")
    result = project.pytester.runpytest_inprocess(*workers)
    result.assert_outcomes(passed=1)
    line = "trainguard: 3 subjects were not judged, pass --trainguard"
    assert result.outlines.count(line) == 1


def test_one_unjudged_subject(project) -> None:
    """One subject is one subject."""
    project.declare("test_x", "mse")
    result = project.pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines("trainguard: 1 subject was not judged, pass --trainguard")


def test_an_imported_subject_is_judged_where_it_is_declared(project) -> None:
    """A subject imported from a guard file is not judged a second time."""
    project.declare("guard_x", "warmup")
    project.pytester.makepyfile(test_a="from guard_x import warmup\ndef test_plain(): pass")
    owners = {line.split("::")[0] for line in project.collected() if "::warmup::" in line}
    assert owners == {"guard_x.py"}


def test_a_subject_of_a_library_is_judged_once(project) -> None:
    """A subject declared where pytest does not look is judged where it is first imported."""
    project.declare("library", "warmup")
    for name in ("test_a", "test_b"):
        project.pytester.makepyfile(**{name: "from library import warmup\ndef test_plain(): pass"})
    owners = [line.split("::")[0] for line in project.collected() if "first_step" in line]
    assert owners == ["test_a.py"]


def test_a_second_name_is_not_a_second_subject(project) -> None:
    """The same subject under two names is judged once, under the first."""
    project.declare("guard_x", "warmup", more="again = warmup")
    assert not [line for line in project.collected() if "::again::" in line]


def test_a_subject_from_a_factory_of_another_guard_file(project) -> None:
    """A subject made by a function of another guard file is found under its own name."""
    project.declare("guard_a", more="def make():\n    return tg.Schedule(lambda step: 1e-3)")
    project.declare("guard_b", more="from guard_a import make\nmade = make()")
    assert "guard_b.py::made::first_step_learns" in project.collected()


def test_subjects_of_a_class(project) -> None:
    """A subject in the body of a test class is collected too."""
    project.declare("guard_x", more="class TestRates:\n    flat = tg.Schedule(lambda step: 1e-3)")
    assert "guard_x.py::TestRates::flat::first_step_learns" in project.collected()


def test_python_files_may_match_guard_files(project) -> None:
    """A guard file that pytest collects by itself is not collected twice."""
    project.declare("guard_x", "warmup")
    project.pytester.makeini("[pytest]\npython_files = *.py")
    assert project.collected().count("guard_x.py::warmup::first_step_learns") == 1
    assert project.collected("guard_x.py").count("guard_x.py::warmup::first_step_learns") == 1


def test_doctest_modules_change_nothing(project) -> None:
    """With --doctest-modules a guard file is still collected."""
    project.declare("guard_x", "warmup")
    assert "guard_x.py::warmup::first_step_learns" in project.collected("--doctest-modules")


def test_nothing_to_judge_is_said(project) -> None:
    """A run that found no subject says so, rather than passing in silence."""
    project.pytester.makepyfile(test_x="def test_plain(): pass")
    project.run().stdout.fnmatch_lines("no subject was found*no file matches guard_*.py")
