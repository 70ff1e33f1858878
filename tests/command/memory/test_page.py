"""The page's eight billion parameters: what it prints is what happens."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


def test_eight_billion_parameters_are_reported_as_printed(folder) -> None:
    """The two files give the report, but for the numbers; the peak is the same within 1 %."""
    for name in ("text/large.py", "guard_large.py"):
        (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", PAGE, re.S)
        (folder.path / name).parent.mkdir(exist_ok=True)
        folder.write(name, f"# {name}\n{code}")
    (report,) = re.findall(r"```\n(large: one training step.*?)```", PAGE, re.S)

    done = folder.memory("guard_large.py")

    assert done.exit_code == 0
    assert worded(done.stdout).startswith(worded(report))
    assert abs(peak(done.stdout) / peak(report) - 1) < 0.01
    assert (ROOT / "docs" / "pictures" / "eight_billion.png").is_file()


def worded(text: str) -> str:
    """Return a text without its numbers and spaces."""
    return " ".join(re.sub(r"[\d.,#]+", " ", text).split())


def peak(text: str) -> float:
    """Return the peak of a report, in GiB."""
    (amount,) = re.findall(r"peak +([\d.]+) GiB", text)
    return float(amount)
