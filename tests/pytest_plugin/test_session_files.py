"""`--trainguard-html` and `--trainguard-baseline`: what is written of a session."""

import json

import pytest

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
        (("--trainguard-html=no/out.html",), "*there is no folder *no. Make it first."),
    ],
)
def test_files_that_cannot_be_meant(options, told, session) -> None:
    """It is one sentence, and nothing is run."""
    run = session(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"ERROR: {told}"])
