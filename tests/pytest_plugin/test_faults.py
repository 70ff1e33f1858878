"""What stops an observation: the subject's own faults, ours, and those of a team's invariant."""

FEW = "--trainguard-select=value_is_finite,gradient_is_finite,gradient_is_bounded"


def test_the_users_traceback_is_kept(project) -> None:
    """A subject that raises fails with its own traceback, without a frame of ours."""
    project.declare("guard_x", "raising")
    result = project.run("--trainguard-select=value_is_finite")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "value_is_finite: `raising` could not be observed: it raised RuntimeError: no such*",
            "  at        guard_x.py:8",
            "  smallest  quarrel(x=torch.tensor(*",
            "Traceback (most recent call last):",
            '  File "*guard_x.py", line 6, in quarrel',
            "RuntimeError: no such luck",
            "1 subject, 1 invariant: 0 passed, 1 unobservable",
        ]
    )
    result.stdout.no_fnmatch_line("*trainguard/observe*")


def test_the_fault_is_shown_once(project) -> None:
    """The first item fails with it, the others are skipped and point at it, the rest is judged."""
    project.declare("guard_x", "raising", "mse")
    result = project.run(FEW)
    result.assert_outcomes(failed=1, passed=3, skipped=2)
    text = result.stdout.str()
    assert text.count("Traceback (most recent call last):") == 1
    result.stdout.fnmatch_lines("2 subjects, 6 invariants: 3 passed, 1 unobservable, 2 skipped")
    told = "`raising` could not be observed, for the reason shown at guard_x.py::raising::value_is_"
    assert told in " ".join(text.split())


def test_a_dimension_that_an_input_is_an_index_of(project) -> None:
    """Where labels go beyond a dimension of 1 to 4, the way out is to say how large it is."""
    more = (
        "labels = tg.Loss(lambda y, t: torch.nn.functional.cross_entropy(y.flatten(0, 1),"
        " t.flatten()), y=tg.real('B T V', -1, 1), t=tg.integer('B T', 0, 63))\n"
    )
    project.declare("guard_x", more=more)
    result = project.run("--trainguard-select=value_is_finite")
    result.assert_outcomes(failed=1)
    assert 'declare sizes={"V": 64}' in " ".join(result.stdout.str().split())


def test_what_a_subject_logs_is_cut(project) -> None:
    """It is called often, and its last words are those of the fault."""
    more = (
        "import logging\n\ndef talk(x):\n    for number in range(300):\n"
        "        logging.warning('line %d', number)\n    raise RuntimeError('no such luck')\n\n"
        "noisy = tg.Loss(talk, x=tg.real('B', -1, 1))\n"
    )
    project.declare("guard_x", more=more)
    text = project.run("--trainguard-select=value_is_finite").stdout.str()
    assert "lines before" in text
    assert text.count("WARNING") == 20
    assert "line 299" in text


def test_a_subject_that_hangs_is_tried_once(project) -> None:
    """A subject that hangs costs its time limit once, not once for each invariant."""
    more = (
        "def slow(x):\n    while True:\n        pass\n\n"
        "slow_loss = tg.Loss(slow, x=tg.real('B', -1, 1), timeout=1.0)\n"
    )
    project.declare("guard_x", more=more)
    result = project.run()
    assert result.parseoutcomes()["failed"] == 1
    assert result.parseoutcomes()["skipped"] >= 4
    result.stdout.fnmatch_lines("*it was still running after 1 seconds, at*")


def test_our_own_fault_is_an_error(project, monkeypatch) -> None:
    """An exception out of our code is an error with the whole traceback, not a failure."""

    def broken(*_):
        raise ZeroDivisionError("ours")

    # The one way to make this code fail on purpose: replace a part of it by one that does.
    monkeypatch.setattr("trainguard.observe.loss.observer.observe", broken)
    project.declare("guard_x", "mse", "warmup")
    result = project.run("--trainguard-select=value_is_finite,first_step_learns")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of mse::value_is_finite*",
            "trainguard itself failed: please report it with this traceback",
            "This says nothing about the subject.",
            '  File "*judge.py", line *',
            "ZeroDivisionError: ours",
            "*1 passed, 1 in error",
        ]
    )


def test_our_own_fault_under_guard_is_an_error(project, monkeypatch) -> None:
    """The same holds for a function under @tg.guard."""

    def broken(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("trainguard.observe.schedule.observer.observe", broken)
    more = "@tg.guard\ndef test_made():\n    return tg.Schedule(lambda step: 1e-3)\n"
    project.declare("test_x", more=more)
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("trainguard itself failed: please report it with this traceback")


def test_an_invariant_of_the_team_that_fails(project) -> None:
    """An exception out of a team's own invariant names it, and is an error too."""
    project.pytester.makeconftest("""
        import trainguard as tg

        @tg.invariant("schedule")
        def rate_is_pretty(trace):
            \"\"\"The rate is pretty.\"\"\"
            raise LookupError("no mirror")
            yield
    """)
    project.declare("guard_x", "warmup")
    # In a process of its own: what is registered stays registered.
    result = project.pytester.runpytest_subprocess(
        "--trainguard", "--trainguard-select=rate_is_pretty,first_step_learns"
    )
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines("the invariant rate_is_pretty, defined in *conftest.py, failed")


RERUN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):  # as pytest-rerunfailures does
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


def test_an_item_that_is_run_again_counts_once(project) -> None:
    """An invariant of a subject, and a function under @tg.guard."""
    project.pytester.makeconftest(RERUN)
    project.declare("guard_x", "warmup")
    more = "@tg.guard\ndef test_made():\n    return tg.Schedule(lambda step: 1e-3)\n"
    project.declare("test_x", more=more)
    result = project.run("--trainguard-select=rate_is_finite_and_positive")
    result.stdout.fnmatch_lines(["2 subjects, 2 invariants: 2 passed", "2 of 2 items ran*"])


def test_a_guard_file_that_cannot_be_imported(project) -> None:
    """Its name is well: what is said of it is that it failed."""
    project.declare("guard_x", more="import no_such_module\n")
    result = project.run()
    result.stdout.fnmatch_lines(["no subject was found: guard_x.py could not be collected"])
    result.stdout.no_fnmatch_line("*no file matches*")
