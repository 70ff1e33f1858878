"""The wheel: built here, and used where the source is out of the way."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "trainguard").is_dir(), reason="the installed wheel is itself under test here"
)

GUARD = """\
import torch
import trainguard as tg


def squared(prediction, target):
    return (prediction - target).square().mean(dim=-1)


squared_loss = tg.Loss(
    squared,
    prediction=tg.real("B D", -3, 3),
    target=tg.real("B D", -3, 3, grad=False),
)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout, and return where it lies."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture
def elsewhere(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack the wheel before all else on the path, and return an empty folder to work in."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    work = tmp_path / "work"
    work.mkdir()
    return work


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in a folder, and return what it printed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every source file is in it with the marker for type checkers; tests and fixtures are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(p.relative_to(ROOT).as_posix()) for p in (ROOT / "trainguard").rglob("*.py")}
    others = {"trainguard/py.typed", "trainguard/command/memory/page.html"}
    assert sources | others == {n for n in names if ".dist-info/" not in n}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_unpacked_wheel_is_what_is_imported(elsewhere: Path) -> None:
    """The test below can fail: what it runs is the wheel, not the checkout."""
    printed = run(elsewhere, "-c", "import trainguard; print(trainguard.__file__)").stdout
    assert Path(printed.strip()).is_relative_to(elsewhere.parent / "site")


def test_the_wheel_judges_a_subject(elsewhere: Path) -> None:
    """A guard file passes under pytest with the plugin of the wheel, in a folder of its own."""
    (elsewhere / "guard_squared.py").write_text(GUARD, encoding="utf-8")
    done = run(elsewhere, "-m", "pytest", "--trainguard", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "squared_loss" in run(elsewhere, "-m", "pytest", "--trainguard", "--collect-only").stdout


def test_the_wheel_has_the_command(elsewhere: Path) -> None:
    """`trainguard list` works from the wheel."""
    code = "from trainguard.command.cli import app; app()"
    done = run(elsewhere, "-c", code, "list")
    assert done.returncode == 0, done.stderr
    assert "gradient_is_finite" in done.stdout
