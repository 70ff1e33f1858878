"""What others published: each schedule keeps its promises, or is excused for its own defect."""

import re
import warnings
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from runpy import run_path

import pytest

import trainguard as tg
from trainguard.core.errors import SubjectError

PAGE = Path(__file__).parents[2] / "docs" / "third_party_schedulers.md"
TIMM = PAGE.with_name("third_party_timm.md")
PROGRAM = re.compile(r"^### (.*?)\n.*?```python\n(.*?)```\n\n```text\n(.*?)```", re.M | re.S)
FILES = {
    "guard_torch_schedulers.py": "torch",
    "guard_transformers.py": "transformers",
    "guard_warmup_scheduler.py": "warmup_scheduler",
    "guard_pytorch_warmup.py": "pytorch_warmup",
    "guard_timm.py": "timm",
}


def subjects() -> list:
    """List the subjects of each file whose package is installed, under their variables' names."""
    found = []
    for file, package in FILES.items():
        try:
            import_module(package)
        except ImportError:
            reason = pytest.mark.skip(reason=f"{package} is not installed")
            found.append(pytest.param(None, id=file, marks=reason))
            continue
        declared = run_path(str(Path(__file__).with_name(file)))
        found += [
            pytest.param(subject, id=f"{package}-{name}")
            for name, subject in declared.items()
            if isinstance(subject, tg.Schedule)
        ]
    return found


@pytest.mark.parametrize("subject", subjects())
def test_a_published_schedule(subject: tg.Schedule) -> None:
    """Nothing is broken but what is excused, and every excuse is needed."""
    verdicts = tg.check(subject, devices=["cpu"])
    notes = {v.invariant.name for v in verdicts if v.notes and v.outcome == "passed"}
    assert notes <= {"first_step_learns"}


@pytest.mark.parametrize("inner", ["SequentialLR", "ChainedScheduler"])
def test_torch_cannot_put_a_composite_after_a_warmup(inner: str) -> None:
    """It raises in the middle of the run, and the message says at which step."""
    lr = import_module("torch.optim.lr_scheduler")

    def build(optimizer):
        decay = lr.ExponentialLR(optimizer, 0.97)
        more = (optimizer, [decay], []) if inner == "SequentialLR" else ([decay],)
        parts = [lr.LinearLR(optimizer, 0.1, 1.0, 10), getattr(lr, inner)(*more)]
        return lr.SequentialLR(optimizer, parts, milestones=[10])

    with pytest.raises(SubjectError, match="raised NotImplementedError at step 9"):
        tg.check(tg.Schedule(build, total=100), devices=["cpu"])


def programs() -> list:
    """List the reproductions of the page: what is claimed, the program, what it prints."""
    text = PAGE.read_text(encoding="utf-8")
    return [pytest.param(*program, id=program[0]) for program in PROGRAM.findall(text)]


@pytest.mark.parametrize(("claim", "code", "printed"), programs())
def test_a_reproduction_prints_what_the_page_says(claim: str, code: str, printed: str) -> None:
    """Each defect in the docs is there, in the versions that are installed."""
    assert played(claim, code) == printed


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", TIMM.read_text("utf-8"), re.S))
def test_a_reproduction_of_timm_prints_its_comments(code: str) -> None:
    """The page on timm has what is printed behind each print; `nox -s timm` installs it."""
    told = re.findall(r"^print\(.*\)  # (.*)$", code, re.M)
    assert told
    assert played("timm", code).splitlines() == told


def played(claim: str, code: str) -> str:
    """Run a reproduction, where all that it imports is installed, and return what it prints."""
    for package in re.findall(r"^(?:from|import) (\w+)", code, re.M):
        pytest.importorskip(package)
    out = StringIO()
    with warnings.catch_warnings(), redirect_stdout(out):
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, claim, "exec"), {"__name__": "reproduction"})
        except Exception as error:  # noqa: BLE001  # what it raises is what it prints
            out.write(type(error).__name__ + "\n")
    return out.getvalue()
