"""The reproductions in docs/third_party_losses.md print what the page says they print."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

for package in ("pytorch_metric_learning", "kornia", "monai"):
    pytest.importorskip(package)

PAGE = Path(__file__).parents[2] / "docs" / "third_party_losses.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^### (.*)$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Return the text of every entry of the page by its heading."""
    _, *parts = HEADING.split(PAGE.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture(scope="module")
def prompt() -> dict[str, Any]:
    """Return the names that the page's first block and its imports define."""
    names: dict[str, Any] = {}
    for code in re.findall(r"^(?:from|import) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        exec(code, names)
    first = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert first is not None
    exec(first[2], names)
    return names


@pytest.mark.filterwarnings("ignore")  # of the libraries, about each other
@pytest.mark.parametrize("heading", sections())
def test_a_documented_defect_is_still_there(heading: str, prompt: dict[str, Any]) -> None:
    """A library that mends a defect makes its entry stale."""
    blocks = dict(BLOCK.findall(sections()[heading]))
    printed = StringIO()
    with redirect_stdout(printed):
        exec(blocks["python"], {**prompt})
    assert printed.getvalue() == blocks["text"]
