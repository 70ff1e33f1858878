"""The README and the pages on each subject: what they show is what happens."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"  # it has a train.py of its own, and test_how_to.py
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {TUTORIAL})]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
LINKED = [
    *(*PAGES, TUTORIAL, *sorted((ROOT / "docs" / "how_to").glob("*.md"))),
    *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
]
CODE = r"^```.*?^```|`[^`\n]*`"
LONGEST = 180  # lines of a README that a newcomer reads to its end
SPARKLINE = re.compile(r"  curve +\S+")
COUNTS = re.compile(r"\d+ of \d+ points")  # they follow the effort of the profile, not the finding
# Each declaration of a page: its two files, and the invariant that fails, alone or with others.
DECLARATIONS = (
    ("audio/losses.py", "guard_losses.py", "gradient_is_finite", 1),
    *(
        pytest.param(*shown, marks=pytest.mark.slow)
        for shown in (
            ("tabular/losses.py", "guard_masked.py", "padding_is_ignored", 1),
            ("speech/rates.py", "guard_rates.py", "warmup_reaches_peak", 2),
            ("text/model.py", "guard_models.py", "samples_do_not_mix", 1),
            ("audio/loaders.py", "guard_loaders.py", "chunk_length_matches_split", 1),
            ("vision/train.py", "guard_checkpoints.py", "checkpoint_is_complete", 1),
        )
    ),
)


@pytest.mark.parametrize(("component", "guards", "invariant", "failed"), DECLARATIONS)
def test_a_declaration_fails_as_printed(
    component: str, guards: str, invariant: str, failed: int, tmp_path: Path
) -> None:
    """What a declaration of a page gives is the message of the page, but for its counts."""
    for name in (component, guards):
        write(tmp_path, name)

    printed = judged(tmp_path)

    (message,) = re.findall(rf"```\n({invariant}: .*?)```", TEXT, re.S)
    assert COUNTS.sub("", message) in COUNTS.sub("", printed)
    assert re.search(rf"= {failed} failed, \d+ passed", printed)


@pytest.mark.slow
def test_a_curve_leaves_its_band_as_printed(tmp_path: Path) -> None:
    """Blessed it passes; without what is lost on the page it fails, in the page's words."""
    for name in ("speech/train.py", "guard_training.py"):
        write(tmp_path, name)
    blessed = judged(tmp_path, "--snapshot-update")
    assert "1 snapshot generated." in blessed
    assert "failed" not in blessed
    train = tmp_path / "speech" / "train.py"
    (lost,) = re.findall(r"In a clean-up `(.*?)` is lost", TEXT)
    train.write_text(train.read_text(encoding="utf-8").replace(f", {lost}", ""), encoding="utf-8")

    printed = judged(tmp_path)

    (message,) = re.findall(r"```\n(curve_matches_snapshot: .*?)```", TEXT, re.S)
    assert worded(SPARKLINE.sub("", message)) in worded(SPARKLINE.sub("", printed))
    assert re.search(r"= 1 failed, \d+ passed", printed)


def web_links(text: str) -> list[str]:
    """Return the addresses of the web in a text; code is no link."""
    return re.findall(r"https://[^\s)\]>`\"']+", re.sub(CODE, "", text, flags=re.M | re.S))


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """What a page refers to in the repository is there, and so is the heading of it."""
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    """A file or a heading that is not there is noticed."""
    readme = PAGES[0]
    assert leads_somewhere(readme, "docs/script.md#a-codebase-that-is-red-today")
    assert not leads_somewhere(readme, "docs/script.md#a-codebase-that-is-blue-today")
    assert not leads_somewhere(readme, "docs/scripts.md")
    assert not leads_somewhere(readme, "#instal")


WEB = sorted({url for page in LINKED for url in web_links(page.read_text(encoding="utf-8"))})


def test_links_to_the_web_are_addresses() -> None:
    """Each is an address of a host with a name, without what only stands behind it in the text."""
    assert WEB
    for url in WEB:
        parts = urlsplit(url)
        assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", parts.netloc), url
        assert url[-1] not in ".,;:", url


@pytest.mark.slow
@pytest.mark.parametrize("url", WEB)
def test_a_link_to_the_web_opens(url: str) -> None:
    """What is not there any more, or never was, is noticed; a host that refuses robots is not."""
    asked = Request(url, headers={"User-Agent": "Mozilla/5.0"})
    try:
        urlopen(asked, timeout=30).close()
    except HTTPError as error:
        if error.code in (404, 410):
            pytest.fail(f"{url}: {error}")
    except URLError as error:
        pytest.skip(f"no network: {error.reason}")


def links(page: Path) -> list[str]:
    """Return what a page links to inside of the repository; code is no link."""
    text = re.sub(CODE, "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", text)


def leads_somewhere(page: Path, link: str) -> bool:
    """Say whether the file of a link is there, and its heading under the name that GitHub gives."""
    name, _, anchor = link.partition("#")
    file = page.parent / name if name else page
    if not anchor or not file.is_file():
        return not anchor and file.exists()
    return anchor in anchors(file)


@cache
def anchors(file: Path) -> set[str]:
    """Return what the headings of a page are called in a link to them."""
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    named = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*named, *re.findall(r'(?:id|name)="([^"]+)"', text)}


def test_every_block_of_the_readme_is_played() -> None:
    """A block is a file or a report of the tests here, the installation, or a session of CI."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGES[0].read_text("utf-8"), re.M | re.S)
    files = {"train.py", *(name for row in DECLARATIONS[:1] for name in row[:2])}
    reports = ("gradient_norm_is_measured_before_zeroing: ", f"{DECLARATIONS[0][2]}: ")
    for kind, body in blocks:
        if kind == "python":
            assert body.partition("\n")[0].removeprefix("# ") in files
        else:
            assert body.startswith(reports) or "pip install" in body, body


def test_the_readme_is_short() -> None:
    """The README is read to its end; what is longer has a page of its own."""
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_the_script_is_reported_as_printed(tmp_path: Path) -> None:
    """The training script of the README gives the README's report, but for its numbers."""
    (report,) = re.findall(r"```\n(gradient_norm_is_measured.*?)```", TEXT, re.S)
    write(tmp_path, "train.py")
    run = told(tmp_path, "trainguard run train.py")
    assert run.returncode == 1
    # Which reasons are the commonest depends on how many steps there was time to ask.
    shown, _, unjudged = report.partition("  unjudged  ")
    assert worded(shown) in worded(run.stdout)
    assert unjudged.partition(" had ")[2][:16] in run.stdout


def test_what_the_readme_goes_on_with(tmp_path: Path) -> None:
    """Each command of its table does what stands beside it."""
    commands = re.findall(
        r"^\| `((?:trainguard|pytest) .*?)` \|", PAGES[0].read_text("utf-8"), re.M
    )
    write(tmp_path, "train.py")
    ended = {command: told(tmp_path, command) for command in commands}
    assert [run.returncode for run in ended.values()] == [0, 1, 1, 1, 0]
    assert "2 failed" in ended["pytest --trainguard"].stdout
    annotations = (tmp_path / "notes.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in annotations] == [
        ["::error file=train.py", "line=14"],
        ["::error file=train.py", "line=16"],
    ]
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "gradient_norm_is_measured" in (tmp_path / "known.json").read_text(encoding="utf-8")


def test_the_sessions_of_the_readme_are_there() -> None:
    """What it says of nox is what noxfile.py has; the sessions themselves are what CI runs."""
    named = re.findall(r"nox -s (\w+)", PAGES[0].read_text(encoding="utf-8"))
    known = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text("utf-8"), re.M)
    assert named
    assert set(named) <= set(known)


def write(folder: Path, name: str) -> None:
    """Write a file of a page into a folder; the README comes before the others."""
    code, *_ = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", TEXT, re.S)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(f"# {name}\n{code}", encoding="utf-8")
    (folder / "pyproject.toml").touch()


def judged(folder: Path, *options: str) -> str:
    """Run `pytest --trainguard` in a folder, and return what it prints."""
    return told(folder, f"pytest --trainguard -p no:cacheprovider {' '.join(options)}").stdout


def told(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a page in a folder."""
    words = [sys.executable, "-m", *shlex.split(command)]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def worded(text: str) -> str:
    """Return a text without its numbers, units of time and spaces."""
    return re.sub(r"[\d.]+( ms| s|e-\d+)?|\s+", " ", text).strip()
