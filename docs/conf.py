"""The site: `nox -s docs` builds it from these pages, and makes a page for each invariant."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # Sphinx enters no folder by itself

from make_catalogue import write_invariant_pages  # noqa: E402 the folder must be known first

project = "trainguard"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3  # as GitHub makes them, so that a link holds in both places
html_theme_options = {
    "page_width": "72rem",
    "font_family": "system-ui, sans-serif",
    "head_font_family": "system-ui, sans-serif",
    "font_size": "16px",
}
exclude_patterns = ["catalogue.md"]  # the pages of the invariants have all that it says


def setup(app: Sphinx) -> None:
    """Make the pages before they are read, and let docstrings stand as they are laid out."""
    app.connect("builder-inited", lambda _: write_invariant_pages(HERE / "invariants"))
    app.connect("autodoc-process-docstring", _keep_lines)


def _keep_lines(*told: object) -> None:
    """Make each line of a docstring a line of the page: they are plain text, and no markup."""
    lines = told[-1]
    assert isinstance(lines, list)
    plain = (re.sub(r"([\\*`|_])", r"\\\1", line) for line in lines)
    lines[:] = [*(f"| {line}".rstrip() for line in plain), ""]
