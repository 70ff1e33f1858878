"""The README: what it shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FILES = re.findall(r"```python\n# (audio/losses\.py|guard_losses\.py)\n(.*?)```", README, re.S)
MESSAGE = re.findall(r"```\n(gradient_is_finite: .*?)```", README, re.S)
COUNTS = re.compile(r"\d+ of \d+ points")  # they follow the effort of the profile, not the finding


def test_the_example_fails_as_printed(tmp_path: Path) -> None:
    """The loss and the declaration of the README give the README's message, but for its counts."""
    for name, code in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n{code}", encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()

    command = [sys.executable, "-m", "pytest", "--trainguard", "-p", "no:cacheprovider"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    (message,) = MESSAGE
    assert COUNTS.sub("", message) in COUNTS.sub("", run.stdout)
    assert "1 failed, 6 passed" in run.stdout
