"""
Write docs/catalogue.md from the docstrings of the invariants.

python docs/make_catalogue.py            writes the page
python docs/make_catalogue.py --check    fails where the page is not what would be written
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trainguard.core.catalogue import FAMILIES, SECTIONS, Invariant, catalogue

PAGE = Path(__file__).with_name("catalogue.md")
FIXTURES = Path(__file__).parents[1] / "fixtures"
HEAD = """\
# The catalogue

What trainguard judges, by family. Generated from the docstrings by `docs/make_catalogue.py`; \
`trainguard explain NAME` prints the same text.
"""
ITEMS = {
    "dtype": "one item for each device and declared dtype",
    "low precision": "one item for each device and declared dtype of 16 bits",
    "device": "one item for each device",
    "subject": "one item for each subject",
}
WORDS = {
    "constant": '`shape="constant"` promised',
    "components": "several `components` promised",
    "devices": "several devices present",
    "mask": "a `tg.mask` declared",
    "category": "a limit of a category promised",
}


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(line for family in FAMILIES for line in family_lines(family))])


def family_lines(family: str) -> Iterator[str]:
    """Yield the table and the entries of one family."""
    yield f"## {family}\n\n| invariant | what holds | judged when |\n|---|---|---|"
    for made in catalogue(family):
        yield f"| [{made.name}](#{family}{made.name}) | {made.title} | {condition(made)} |"
    yield ""
    for made in catalogue(family):
        yield f"### {made.key}\n\n{made.title}\n"
        yield from entry_lines(made)


def entry_lines(made: Invariant) -> Iterator[str]:
    """Yield what the docstring of an invariant says."""
    yield from (f"- **{heading}**: {made.section(heading)}" for heading in SECTIONS)
    yield f"- **Items**: {ITEMS[made.per]}.\n"


def condition(made: Invariant) -> str:
    """Return what must be declared for an invariant to be judged, in words."""
    needs = [WORDS.get(need, f"`{need}` promised") for need in sorted(made.needs)]
    if made.per == "low precision":
        needs.append("a dtype of 16 bits declared")
    return ", ".join(needs) or "always"


def write_invariant_pages(folder: Path) -> None:
    """Write a page for each invariant, and one that leads to them, for the site."""
    folder.mkdir(exist_ok=True)
    names = [made.key for made in catalogue()]
    leading = ["# A page for each invariant\n", "```{toctree}", ":maxdepth: 1", *names, "```", ""]
    pages = {made.key: invariant_lines(made) for made in catalogue()}
    for name, lines in {"index": leading, **pages}.items():
        (folder / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")


def invariant_lines(made: Invariant) -> Iterator[str]:
    """Yield the page of an invariant: what it says, how to excuse it, code that breaks it."""
    yield f"# {made.key}\n\n{made.title}\n\nJudged: {condition(made)}.\n"
    yield from entry_lines(made)
    yield f'## Excuse it\n\n```python\nallow={{"{made.name}": "<reason>"}}\n```\n'
    yield f"`--trainguard-ignore={made.key}` leaves it out. Its limits are what `Allows` says.\n"
    for broken in broken_fixtures(made)[:1]:
        path = broken.relative_to(FIXTURES.parent).as_posix()
        yield f"## Code that breaks it\n\n`{path}`:\n\n```{{literalinclude}} ../../{path}\n```\n"


def broken_fixtures(made: Invariant) -> list[Path]:
    """Return the fixtures that break an invariant; the tests run them."""
    naming = re.compile(rf"^BREAKS\b[^}}]*\"{made.name}\"", re.MULTILINE)
    files = sorted((FIXTURES / "broken" / made.family).glob("guard_*.py"))
    return [file for file in files if naming.search(file.read_text(encoding="utf-8"))]


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with `--check`; returns the exit status."""
    text = page().rstrip("\n") + "\n"
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
    if not current:
        sys.stderr.write("docs/catalogue.md is stale. Run: python docs/make_catalogue.py\n")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
