"""What is written of a session: its formats, its page, and what it is held against."""

import json
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from trainguard.pytest_plugin import plugin
from trainguard.report.formats.table import FORMATS
from trainguard.report.schema import findings_schema

GUARDS = """\
import torch

import trainguard as tg


def root(x):
    return x.square().sum().sqrt()


def train():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(8):
        loss = net(torch.randn(16, 4)).square().mean()
        loss.backward()
        optimizer.step()


distance = tg.Loss(root, x=tg.real("B T", -1, 1))
loop = tg.Loop(train, steps=8)
"""
FAULTY = """\
import trainguard as tg


def fails(x):
    raise RuntimeError("lost")


broken = tg.Loss(fails, x=tg.real("B T", -1, 1))
"""
FEW = "--trainguard-select=gradient_is_finite,value_is_finite,gradients_start_empty,loss_is_finite"
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one", "xdist"])


@pytest.fixture
def session(pytester):
    """Return a function that judges the guards with options."""
    pytester.makepyfile(guard_x=GUARDS)

    def judge(*options):
        return pytester.runpytest_subprocess(
            "--trainguard", "--trainguard-profile=quick", FEW, *options
        )

    return judge


@WORKERS
def test_a_page(session, workers, pytester) -> None:
    """It has each subject, the findings, and the curve of the run with a finding at its step."""
    session("--trainguard-html=out.html", *workers).assert_outcomes(passed=2, failed=2)
    page = (pytester.path / "out.html").read_text(encoding="utf-8")
    assert page.count("<h1>") == 2
    assert page.count('<section class="card finding"') == 2
    assert "polyline" in page
    assert 'title="step 1: gradients_start_empty">' in page
    assert "value_is_finite[cpu-float32]" in page


@WORKERS
def test_a_file_of_each_format(session, workers, pytester) -> None:
    """All hold the same findings, whichever process made them, and what could not be judged."""
    pytester.makepyfile(guard_y=FAULTY)
    names = [name for name in FORMATS if name != "html"]
    asked = [f"--trainguard-format={name}=out.{name}" for name in names]
    session(*asked, *workers)
    written = {name: (pytester.path / f"out.{name}").read_text("utf-8") for name in names}
    told = json.loads(written["json"])
    jsonschema.Draft202012Validator(findings_schema()).validate(told)
    subjects = {each["subject"]: each for each in told["subjects"]}
    found = {name: [f["invariant"] for f in each["findings"]] for name, each in subjects.items()}
    assert found == {
        "guard_x.py::distance": ["gradient_is_finite"],
        "guard_x.py::loop": ["gradients_start_empty"],
        "guard_y.py::broken": [],
    }
    assert [f["config"] for f in subjects["guard_x.py::distance"]["findings"]] == ["cpu-float32"]
    assert subjects["guard_x.py::loop"]["trace"]["steps"] == 8
    assert "RuntimeError: lost" in subjects["guard_y.py::broken"]["faults"][0]["text"]
    (run,) = json.loads(written["sarif"])["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    lines = {(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places}
    assert lines == {("guard_x.py", 17), ("guard_x.py", 20), ("guard_y.py", 8)}
    assert written["github"].count("\n::error file=") == 2
    suites = ET.fromstring(written["junit"].encode())
    assert sum(int(suite.get("failures")) for suite in suites) == 2
    assert sum(int(suite.get("errors")) for suite in suites) == 1
    for name in names:
        assert "lost" in written[name], name


@WORKERS
def test_annotations(session, workers, monkeypatch) -> None:
    """In GitHub Actions each finding is annotated, at its line or at that of the declaration."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    told = session(*workers).stdout.lines
    shown = sorted(line.partition("::`")[0] for line in told if line.startswith("::"))
    assert [line.partition(",title=")[0] for line in shown] == [
        "::error file=guard_x.py,line=17",
        "::error file=guard_x.py,line=20",
    ]


@WORKERS
def test_a_baseline(session, workers, pytester) -> None:
    """What is found is written, and fails no more; what is mended must leave the file."""
    asked = ("--trainguard-baseline=known.json", *workers)
    told = session(*asked)
    told.assert_outcomes(passed=2, xfailed=2)
    told.stdout.fnmatch_lines(["trainguard: 2 findings are written to known.json*"])
    file = pytester.path / "known.json"
    assert {entry["subject"] for entry in json.loads(file.read_text())["findings"]} == {
        "guard_x.py::distance",
        "guard_x.py::loop",
    }
    session(*asked).assert_outcomes(passed=2, xfailed=2)
    pytester.makepyfile(
        guard_x=GUARDS.replace("        loss.", "        net.zero_grad()\n        loss.")
    )
    told = session(*asked)
    told.assert_outcomes(passed=2, xfailed=1, failed=1)
    told.stdout.fnmatch_lines(["*--trainguard-update-baseline takes*"])
    told = session(*asked, "--trainguard-update-baseline")
    told.assert_outcomes(passed=3, xfailed=1)
    assert len(json.loads(file.read_text())["findings"]) == 1
    pytester.makepyfile(guard_x=GUARDS)
    session(*asked).assert_outcomes(passed=2, xfailed=1, failed=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--trainguard-update-baseline",), "*Name it: --trainguard-baseline FILE."),
        (("--trainguard-baseline=guard_x.py",), "*guard_x.py is no baseline of trainguard*"),
        (("--trainguard-format=json",), "*json names no file. Write json=<file>."),
        (("--trainguard-format=xml=a.xml",), "*is no format. Known: text, json*"),
        (("--trainguard-format=json=a", "--trainguard-html=a"), "*a is given twice*"),
        (("--trainguard-html=no/out.html",), "*there is no folder *no. Make it first."),
    ],
)
def test_files_that_cannot_be_meant(options, told, session) -> None:
    """It is one sentence, and nothing is run."""
    run = session(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"ERROR: {told}"])


def test_the_help_names_each_format() -> None:
    """It is words of its own: what knows the formats is not loaded without `--trainguard`."""
    told = plugin.FILES["format"]["help"].replace(",", "").split()
    assert set(FORMATS) == set(told) & set(FORMATS)
    assert len(told) == len(FORMATS) + len(["write", "what", "was", "judged", "as", "or"])
