"""Items are ordinary pytest items: selection, the cache, JUnit files and exit codes."""

import json
import xml.etree.ElementTree as ET

import pytest

UNCLIPPED = """\
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
"""
TWO = "--trainguard-select=value_is_finite,gradient_is_finite"


def test_node_id(project) -> None:
    """One item is selected by its node id, and all its configurations by the id without them."""
    project.declare("guard_x", "mse", "bf16")
    one = project.run("guard_x.py::bf16::value_is_finite[cpu-bfloat16]")
    one.assert_outcomes(passed=1)
    assert project.collected("guard_x.py::bf16::value_is_finite") == [
        "guard_x.py::bf16::value_is_finite[cpu-float32]",
        "guard_x.py::bf16::value_is_finite[cpu-bfloat16]",
    ]
    assert {line.split("::")[1] for line in project.collected("guard_x.py::mse")} == {"mse"}


def test_a_node_id_that_is_not_there(project) -> None:
    """A wrong node id is a wrong usage, as it is for any test."""
    project.declare("guard_x", "mse")
    result = project.run("guard_x.py::mse::value_is_finit")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*not found:*guard_x.py::mse::value_is_finit")


def test_k(project) -> None:
    """-k matches invariants and subjects."""
    project.declare("guard_x", "mse", "warmup")
    assert len(project.collected("-k", "mse and value_is_finite")) == 1
    assert len(project.collected("-k", "first_step_learns")) == 1


def test_m(project) -> None:
    """-m trainguard separates subjects from ordinary tests, and marks of a module hold."""
    marked = "pytestmark = __import__('pytest').mark.filterwarnings\ndef test_plain(): pass"
    project.declare("test_x", "warmup", more=marked)
    every, ours = project.collected(), project.collected("-m", "trainguard")
    assert set(every) - set(ours) == {"test_x.py::test_plain"}
    assert project.collected("-m", "filterwarnings") == every
    assert project.collected("-m", "not trainguard", "--strict-markers") == [
        "test_x.py::test_plain"
    ]


def test_a_skipped_module(project) -> None:
    """A module marked as skipped skips its subjects, with its reason, and observes nothing."""
    marked = "pytestmark = __import__('pytest').mark.skip(reason='no data here')"
    project.declare("guard_x", "raising", more=marked)
    result = project.run(TWO)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*2 skipped", "0 of 2 items ran*", "*skipped*2: no data here"])


def test_lf(project) -> None:
    """--lf runs again what failed, and only that."""
    project.declare("guard_x", "mse", "leak")
    project.run(TWO).assert_outcomes(passed=3, failed=1)
    result = project.run(TWO, "--lf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("FAILED guard_x.py::leak::gradient_is_finite[[]cpu-float32[]]*")


def test_x(project) -> None:
    """-x stops at the first failure, and the closing section counts what never ran."""
    project.declare("guard_x", "leak", "mse")
    result = project.run(TWO, "-x")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("2 of 4 items ran*")


def test_collect_only(project) -> None:
    """--collect-only shows the tree and runs nothing."""
    project.declare("guard_x", "raising")
    result = project.run("--collect-only", TWO)
    result.stdout.fnmatch_lines(
        [
            "*<Module guard_x.py>",
            "*<SubjectCollector raising>",
            "*<InvariantItem value_is_finite[[]cpu-float32[]]>",
        ]
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*= trainguard =*")


def test_junitxml(project) -> None:
    """A JUnit file names the subject as the class, and holds the report without a traceback."""
    project.declare("guard_x", "mse", "leak", "excused")
    project.run("--trainguard-select=gradient_is_finite", "--junitxml=out.xml")
    root = ET.fromstring((project.pytester.path / "out.xml").read_text())
    cases = {case.get("classname"): case for case in root.iter("testcase")}
    assert set(cases) == {"guard_x.mse", "guard_x.leak", "guard_x.excused"}
    assert {case.get("name") for case in cases.values()} == {"gradient_is_finite[cpu-float32]"}
    failure = cases["guard_x.leak"].find("failure")
    assert failure.text.startswith("gradient_is_finite: the gradient of `leak` is not finite\n")
    assert "Traceback" not in failure.text
    assert cases["guard_x.mse"].find("failure") is None
    assert cases["guard_x.excused"].find("skipped").get("message") == "see ticket 7"
    told = [json.loads(each.get("value")) for each in cases["guard_x.mse"].iter("property")]
    assert [(entry["invariant"], entry["outcome"]) for entry in told] == [
        ("gradient_is_finite", "passed")
    ]


def test_what_is_skipped_is_so_where_it_is_declared(project) -> None:
    """In the summary of pytest and in the JUnit file, with workers too."""
    (project.pytester.path / "train.py").write_text(UNCLIPPED)
    project.pytester.makepyfile(guard_y="import trainguard as tg\n\nrun = tg.Script('train.py')\n")
    for more in ((), ("-n", "1")):
        words = ("-rs", "--trainguard-select=clipping_is_rare", "--junitxml=out.xml", *more)
        project.run(*words).stdout.fnmatch_lines(
            ["SKIPPED * guard_y.py:3: no gradient was clipped"]
        )
        root = ET.fromstring((project.pytester.path / "out.xml").read_text())
        (skipped,) = root.iter("skipped")
        assert skipped.text.endswith("guard_y.py:3: no gradient was clipped")


@pytest.mark.parametrize(
    ("subject", "code"), [("mse", 0), ("leak", 1), ("excused", 0), ("raising", 1)]
)
def test_exit_codes(project, subject, code) -> None:
    """Exit codes are pytest's own."""
    project.declare("guard_x", subject)
    assert project.run("--trainguard-select=gradient_is_finite").ret == code


def test_a_report_is_text_without_a_traceback(project) -> None:
    """What is shown of a failure is the report, under a headline that names the item."""
    project.declare("guard_x", "leak")
    result = project.run("--trainguard-select=gradient_is_finite", profile="")
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if line.startswith("____"))
    assert "leak::gradient_is_finite[cpu-float32]" in lines[start]
    report = lines[start + 1 : lines.index(next(x for x in lines if "= trainguard =" in x))]
    assert report[0] == "gradient_is_finite: the gradient of `leak` is not finite"
    labels = [line.split()[0] for line in report[1:] if line[2] != " "]
    rows = ["at", "measured", "allowed", "smallest", "why", "rerun", "silence", "read"]
    assert labels == rows
    assert all(len(line) <= 100 for line in report)
    (rerun,) = [line for line in report if line.startswith("  rerun")]
    nodeid = "guard_x.py::leak::gradient_is_finite[cpu-float32]"
    assert rerun.split(maxsplit=1)[1] == f"pytest --trainguard '{nodeid}'"


def test_rerun_from_a_folder_below(project, monkeypatch) -> None:
    """The rerun row can be pasted where pytest was started, with the options of the run."""
    folder = project.pytester.mkdir("below")
    project.pytester.makeini("[pytest]\n")
    project.declare("guard_x", "leak")
    (project.pytester.path / "guard_x.py").rename(folder / "guard_x.py")
    monkeypatch.chdir(folder)
    result = project.run("--trainguard-select=gradient_is_finite")
    result.stdout.fnmatch_lines(
        [
            "  rerun     pytest --trainguard --trainguard-profile=quick *\\",
            "            'guard_x.py::leak::gradient_is_finite[[]cpu-float32[]]'",
        ]
    )


def test_vv_shows_the_trace(project) -> None:
    """-vv adds the events of the trace that broke."""
    project.declare("guard_x", "leak")
    plain = project.run("--trainguard-select=gradient_is_finite", "-v").stdout.str()
    loud = project.run("--trainguard-select=gradient_is_finite", "-vv").stdout
    assert "trace of the probe" not in plain
    loud.fnmatch_lines(["trace of the probe `sweep`, * events", "  *quantity='value'*"])
