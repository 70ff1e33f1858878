"""Curves of a training on a device: blessed there, kept beside those of the CPU, and compared."""

import os
import subprocess
import sys
from pathlib import Path

from fixtures import edits
from tests.simulated.device import DEFAULT
from tests.simulated.moved import MOVED

ROOT = Path(__file__).parents[2]
MISTAKE, REFACTORING = "the rate changed by 1 %", "gradients cleared in place"
SHORT = (("epochs=3", "epochs=1"), ("curve=", "probe=False, curve="))


def training(*changes: edits.Edit) -> str:
    """Return the source of a reference training of 20 steps, with some edits."""
    text = edits.source(edits.AUDIO)
    for old, new in (pair for change in (SHORT, *changes) for pair in change):
        assert old in text
        text = text.replace(old, new)
    return text


def judge(folder: Path, device: str, *options: str) -> tuple[int, str]:
    """Judge the curves of what lies in a folder, on a device; return the exit code and output."""
    on_device = {DEFAULT: device, MOVED: "1"} if device != "cpu" else {}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    chosen = (
        "--trainguard",
        "--trainguard-select=curve_matches_snapshot",
        "-p",
        "no:cacheprovider",
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen, "-p", "tests.simulated.present", *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **on_device},
        timeout=240,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_curve_is_blessed_on_a_device_and_compared(tmp_path, device):
    """It fits what rounds as before, departs with a mistake, and is not that of the CPU."""
    file = tmp_path / "guard_training.py"
    file.write_text(training())
    code, said = judge(tmp_path, device, "--snapshot-update")
    assert code == 0, said
    kept = {path.name.rpartition("-")[2] for path in tmp_path.rglob("*.curve")}
    assert kept == {"sim].curve"}
    file.write_text(training(edits.REFACTORINGS[REFACTORING][edits.AUDIO]))
    code, said = judge(tmp_path, device)
    assert code == 0, said
    file.write_text(training(edits.MISTAKES[MISTAKE][edits.AUDIO]))
    code, said = judge(tmp_path, device)
    assert code == 1, said
    assert "curve_matches_snapshot: " in said
    file.write_text(training())
    code, said = judge(tmp_path, "cpu")  # what is kept of a device is not the CPU's
    assert code == 1, said
    assert "-cpu].curve" in said
