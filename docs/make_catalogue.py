"""
Write docs/catalogue.md from the docstrings of the invariants, and the examples from the fixtures.

python docs/make_catalogue.py            writes them
python docs/make_catalogue.py --check    fails where one is not what would be written
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher, unified_diff
from functools import cache
from pathlib import Path

from trainguard.core.catalogue import FAMILIES, SECTIONS, Invariant, catalogue, has_limit

PAGE = Path(__file__).with_name("catalogue.md")
EXAMPLES = Path(__file__).parents[1] / "trainguard" / "report" / "examples.json"
FIXTURES = Path(__file__).parents[1] / "fixtures"
_IMPORTS = (ast.Import, ast.ImportFrom)
LIKE = 0.7  # of the lines: less is another component, and not the same one mended
_THREAD = r"\b([\w.-]+/[\w.-]+) "
PLACES = {
    r"(?<![\w./])(?:[\w-]+\.)+(?:org|io)/[\w./-]*\w": r"https://\g<0>",
    _THREAD + r"issues? (\d+)": r"https://github.com/\1/issues/\2",
    _THREAD + r"pull requests? (\d+)": r"https://github.com/\1/pull/\2",
    r"\barXiv (\d{4}\.\d{4,5})": r"https://arxiv.org/abs/\1",
    r"\bStack Overflow questions? (\d+)": r"https://stackoverflow.com/q/\1",
}
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
    """Yield the page of an invariant: what it says, an example, how to excuse it, its limit."""
    yield f"# {made.key}\n\n{made.title}\n\nJudged: {condition(made)}.\n"
    yield from map(link_sources, entry_lines(made))
    broken, changed = find_example(made)
    if changed:
        changed = changed.removeprefix("@@\n").rstrip()
        yield f"## The change that mends it\n\n```diff\n{changed}\n```\n"
    if broken is None:
        yield "It has no example here: what breaks it needs a device besides the processor.\n"
    else:
        path, code = broken.relative_to(FIXTURES.parent).as_posix(), "\n".join(_code(broken))
        yield f"## Code that breaks it\n\n`{path}`, which a test runs:\n\n```python\n{code}\n```\n"
    yield f'## Excuse it\n\n```python\nallow={{"{made.name}": "<reason>"}}\n```\n'
    yield f"`--trainguard-ignore={made.key}` leaves it out.\n\n## Set its limit\n"
    if has_limit(made):
        yield f'```python\nlimits={{"{made.name}": 0.5}}\n```\n'
        yield "It is in the unit of the message, and replaces the default that `Allows` has.\n"
    else:
        yield "It has none that can be set.\n"


def link_sources(line: str) -> str:
    """Return a line in which threads, papers and questions that it names are links to them."""
    for pattern, address in PLACES.items():
        line = re.sub(pattern, rf"[\g<0>]({address})", line)
    return line


def examples() -> str:
    """Return what the package has of the examples, for the pages of runs and `explain`."""
    found = {made.key: find_example(made)[1] for made in catalogue()}
    return json.dumps({key: text for key, text in found.items() if text}, indent=0)


@cache
def find_example(made: Invariant) -> tuple[Path | None, str]:
    """
    Return code that breaks an invariant, and the change that mends it; both are run by a test.

    The change stands beside it; else it is what a healthy fixture has instead, if one is alike.
    """
    files = sorted(broken_fixtures(made), key=lambda file: len(_code(file)))
    for file in files:
        change = file.with_suffix(".diff")
        if change.is_file():
            return file, change.read_text(encoding="utf-8").rstrip("\n")
    pairs = [(file, *mended_twin(file)) for file in files]
    broken, likeness, mended = max(pairs, key=lambda pair: pair[1], default=(None, 0.0, None))
    if likeness < LIKE or broken is None or mended is None:
        return broken, ""
    diff = [*unified_diff(_code(broken), _code(mended), n=2, lineterm="")][2:]
    return broken, "\n".join("@@" if line.startswith("@@") else line for line in diff)


@cache
def mended_twin(broken: Path) -> tuple[float, Path]:
    """Return the healthy fixture that is most like a broken one, and how much of it is alike."""
    files = sorted((FIXTURES / "healthy" / broken.parent.name).glob("guard_*.py"))
    likeness = (SequenceMatcher(None, _code(broken), _code(file), autojunk=False) for file in files)
    found = [(matcher.ratio(), file) for matcher, file in zip(likeness, files, strict=True)]
    return max(found, default=(0.0, broken))


@cache
def _code(file: Path) -> list[str]:
    """Return the lines of a fixture without what only the tests read: docstring, BREAKS, MET."""
    text = file.read_text(encoding="utf-8")
    body = ast.parse(text).body[1:]
    told = [node for node in body if not _is_for_tests(node)]
    lines, code = text.splitlines(), list[str]()
    for before, node in zip([None, *told], told, strict=False):
        together = isinstance(before, _IMPORTS) and isinstance(node, _IMPORTS)
        code += [""] * (before is not None and not together)
        code += lines[_first(node) - 1 : node.end_lineno]
    return code


def _first(node: ast.stmt) -> int:
    """Return the first line of a statement, its decorators included."""
    above = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in above)])


def _is_for_tests(node: ast.stmt) -> bool:
    """Say whether a statement names what a fixture breaks, and where somebody met it."""
    target = getattr(node, "targets", [getattr(node, "target", None)])[0]
    return getattr(target, "id", "") in ("BREAKS", "UNDECLARED", "MET")


def broken_fixtures(made: Invariant) -> list[Path]:
    """Return the fixtures that break an invariant; the tests run them."""
    naming = re.compile(rf"^BREAKS\b[^}}]*\"{made.name}\"", re.MULTILINE)
    files = sorted((FIXTURES / "broken" / made.family).glob("guard_*.py"))
    return [file for file in files if naming.search(file.read_text(encoding="utf-8"))]


def main(arguments: list[str]) -> int:
    """Write what is generated, or compare it with `--check`; returns the exit status."""
    stale = []
    for file, text in {PAGE: page(), EXAMPLES: examples()}.items():
        text = text.rstrip("\n") + "\n"
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
    if stale:
        told = " and ".join(stale)
        sys.stderr.write(f"{told}: stale. Run: python docs/make_catalogue.py\n")
    return len(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
