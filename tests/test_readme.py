"""The README: what it shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COUNTS = re.compile(r"\d+ of \d+ points")  # they follow the effort of the profile, not the finding
# Each declaration of the README: its two files, the invariant that fails, and what the run ends in.
DECLARATIONS = (
    ("audio/losses.py", "guard_losses.py", "gradient_is_finite", "1 failed, 6 passed"),
    ("text/model.py", "guard_models.py", "samples_do_not_mix", "1 failed, 10 passed"),
    ("audio/loaders.py", "guard_loaders.py", "chunk_length_matches_split", "1 failed, 14 passed"),
)


@pytest.mark.parametrize(("component", "guards", "invariant", "end"), DECLARATIONS)
def test_a_declaration_fails_as_printed(
    component: str, guards: str, invariant: str, end: str, tmp_path: Path
) -> None:
    """What a declaration of the README gives is the README's message, but for its counts."""
    for name in (component, guards):
        (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", README, re.S)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n{code}", encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()

    command = [sys.executable, "-m", "pytest", "--trainguard", "-p", "no:cacheprovider"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    (message,) = re.findall(rf"```\n({invariant}: .*?)```", README, re.S)
    assert COUNTS.sub("", message) in COUNTS.sub("", run.stdout)
    assert end in run.stdout


def test_the_script_is_reported_as_printed(tmp_path: Path) -> None:
    """The training script of the README gives the README's report, but for its numbers."""
    (code,) = re.findall(r"```python\n# train\.py\n(.*?)```", README, re.S)
    (report,) = re.findall(r"```\n(gradient_norm_is_measured.*?)```", README, re.S)
    (tmp_path / "train.py").write_text(f"# train.py\n{code}", encoding="utf-8")
    command = [sys.executable, "-m", "trainguard", "run", "train.py"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 1
    assert worded(report) in worded(run.stdout)


def worded(text: str) -> str:
    """Return a text without its numbers, units of time and spaces."""
    return re.sub(r"[\d.]+( ms| s|e-\d+)?|\s+", " ", text).strip()
