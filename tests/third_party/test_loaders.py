"""What others published: each loader passes everything, or is excused for its own defect."""

import multiprocessing
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trainguard as tg

PAGE = Path(__file__).parents[2] / "docs" / "third_party_loaders.md"
PROGRAM = re.compile(r"^### (.*?)\n.*?```python\n(.*?)```\n\n```text\n(.*?)```", re.M | re.S)
FILES = {
    "guard_accelerate": ("accelerate",),
    "guard_collators": ("transformers",),
    "guard_datasets": ("datasets", "torchdata.stateful_dataloader"),
    "guard_lightning": ("lightning",),
    "guard_monai_loaders": ("monai", "kornia"),
    "guard_torchdata": ("torchdata.stateful_dataloader", "torchdata.nodes"),
    "guard_webdataset": ("webdataset",),
}


def subjects() -> list:
    """List the subjects of each file whose packages are installed, under their variables' names."""
    found = []
    for file, packages in FILES.items():
        try:
            for package in packages:
                import_module(package)
        except ImportError:
            reason = pytest.mark.skip(reason=f"{package} is not installed")
            found.append(pytest.param(None, id=file, marks=reason))
            continue
        # Imported rather than run: workers that are spawned look for its classes by name.
        declared = vars(import_module(f"tests.third_party.{file}"))
        found += [
            pytest.param(subject, id=f"{packages[0].partition('.')[0]}-{name}")
            for name, subject in declared.items()
            if isinstance(subject, tg.Loader)
        ]
    return found


# torchdata's threads end themselves when they are collected, and complain where they cannot.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("subject", subjects())
def test_a_published_loader(subject: tg.Loader) -> None:
    """Nothing is broken but what is excused, every excuse is needed, and no process is left."""
    before = {child.pid for child in multiprocessing.active_children()}

    verdicts = tg.check(subject, devices=["cpu"])

    notes = {v.invariant.name for v in verdicts if v.notes and v.outcome == "passed"}
    assert notes <= {"settings_fit_the_machine"}  # another machine, other settings
    assert {child.pid for child in multiprocessing.active_children()} <= before


def programs() -> list:
    """List the reproductions of the page: what is claimed, the program, what it prints."""
    text = PAGE.read_text(encoding="utf-8")
    return [pytest.param(*program, id=program[0]) for program in PROGRAM.findall(text)]


@pytest.mark.parametrize(("claim", "code", "printed"), programs())
def test_a_reproduction_prints_what_the_page_says(
    claim: str, code: str, printed: str, tmp_path: Path
) -> None:
    """Each defect in the docs is there, in the versions that are installed."""
    for package in re.findall(r"^(?:from|import) (\w+)", code, re.M):
        pytest.importorskip(package)
    script = tmp_path / "reproduction.py"
    script.write_text(code, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.stdout, run.returncode) == (printed, 0), claim + run.stderr
