"""The README: what it shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SPARKLINE = re.compile(r"  curve +\S+")
COUNTS = re.compile(r"\d+ of \d+ points")  # they follow the effort of the profile, not the finding
# Each declaration of the README: its two files, and the one invariant that fails.
DECLARATIONS = (
    ("audio/losses.py", "guard_losses.py", "gradient_is_finite"),
    ("text/model.py", "guard_models.py", "samples_do_not_mix"),
    ("audio/loaders.py", "guard_loaders.py", "chunk_length_matches_split"),
    ("vision/train.py", "guard_checkpoints.py", "checkpoint_is_complete"),
)


@pytest.mark.parametrize(("component", "guards", "invariant"), DECLARATIONS)
def test_a_declaration_fails_as_printed(
    component: str, guards: str, invariant: str, tmp_path: Path
) -> None:
    """What a declaration of the README gives is the README's message, but for its counts."""
    for name in (component, guards):
        write(tmp_path, name)

    printed = judged(tmp_path)

    (message,) = re.findall(rf"```\n({invariant}: .*?)```", README, re.S)
    assert COUNTS.sub("", message) in COUNTS.sub("", printed)
    assert re.search(r"= 1 failed, \d+ passed", printed)


def test_a_curve_leaves_its_band_as_printed(tmp_path: Path) -> None:
    """Blessed it passes; without what is lost in the README it fails, in the README's words."""
    for name in ("speech/train.py", "guard_training.py"):
        write(tmp_path, name)
    blessed = judged(tmp_path, "--snapshot-update")
    assert "1 snapshot generated." in blessed
    assert "failed" not in blessed
    train = tmp_path / "speech" / "train.py"
    (lost,) = re.findall(r"In a clean-up `(.*?)` is lost", README)
    train.write_text(train.read_text(encoding="utf-8").replace(f", {lost}", ""), encoding="utf-8")

    printed = judged(tmp_path)

    (message,) = re.findall(r"```\n(curve_matches_snapshot: .*?)```", README, re.S)
    assert worded(SPARKLINE.sub("", message)) in worded(SPARKLINE.sub("", printed))
    assert re.search(r"= 1 failed, \d+ passed", printed)


def test_the_pictures_are_there() -> None:
    """What the README shows stands beside it."""
    pictures = re.findall(r"!\[[^]]*\]\((.*?)\)", README)
    assert pictures
    assert [p for p in pictures if not (Path(__file__).parents[1] / p).is_file()] == []


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
    # Which reasons are the commonest depends on how many steps there was time to ask.
    told, _, unjudged = report.partition("  unjudged  ")
    assert worded(told) in worded(run.stdout)
    assert unjudged.partition(" had ")[2][:16] in run.stdout


def write(folder: Path, name: str) -> None:
    """Write a file of the README into a folder."""
    (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", README, re.S)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(f"# {name}\n{code}", encoding="utf-8")
    (folder / "pyproject.toml").touch()


def judged(folder: Path, *options: str) -> str:
    """Run `pytest --trainguard` in a folder, and return what it prints."""
    command = [sys.executable, "-m", "pytest", "--trainguard", "-p", "no:cacheprovider", *options]
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return run.stdout


def worded(text: str) -> str:
    """Return a text without its numbers, units of time and spaces."""
    return re.sub(r"[\d.]+( ms| s|e-\d+)?|\s+", " ", text).strip()
