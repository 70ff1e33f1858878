"""The catalogue: every invariant explains itself, and the generated page is up to date."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from trainguard.core.catalogue import (
    FAMILIES,
    SECTIONS,
    Invariant,
    catalogue,
    check_globs,
    find_invariants,
    has_limit,
    suggest_name,
)
from trainguard.core.errors import DeclarationError
from trainguard.judging.baseline import VERSION, entries_of
from trainguard.subjects.loop import Script

ROOT = Path(__file__).parents[2]
# A thread, an address, a page of a known project, a paper or a book, a published weakness.
OPENABLE = r"issues? \d|pull request|\.org|\.io|PyTorch|torch\.|/|documentation|\d{4}|CS231n"
by_key = pytest.mark.parametrize("made", catalogue(), ids=lambda made: made.key)


@by_key
def test_every_section_is_there(made: Invariant) -> None:
    """Each docstring says what is judged, allowed and missed, why it matters, and the source."""
    assert {
        heading: made.section(heading) for heading in SECTIONS if not made.section(heading)
    } == {}


@by_key
def test_the_title_is_one_sentence(made: Invariant) -> None:
    """The first line of a docstring is a sentence that fits one row."""
    assert made.title[0].isupper()
    assert made.title.endswith(".")
    assert len(made.title) <= 96


@by_key
def test_the_module_is_the_family(made: Invariant) -> None:
    """An invariant of ours stands in the module, or the folder, of its family."""
    assert made.judge.__module__.startswith(f"trainguard.invariants.{made.family}")


@by_key
def test_the_source_can_be_opened(made: Invariant) -> None:
    """A source is a paper, a public thread or a page of documentation, not a document of ours."""
    assert re.search(OPENABLE, made.section("Source"))


@by_key
def test_the_changelog_names_it(made: Invariant) -> None:
    """A team that updates can read which judgements are new."""
    assert made.name in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_family_has_invariants() -> None:
    """No family is empty, and none is unknown."""
    assert {made.family for made in catalogue()} == set(FAMILIES)


TWIN = "@invariant('loss')\ndef value_is_odd(trace): ..."


@pytest.mark.parametrize("second", ["", TWIN, "if True:\n" + indent(TWIN, "    ")])
def test_a_name_is_taken_once(second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second invariant of one name in a module is refused; a module that is reloaded is not."""
    first = "from trainguard import invariant\n\n@invariant('loss')\ndef value_is_odd(trace): ..."
    (tmp_path / "odd.py").write_text(f"{first}\n\n{second}\n", encoding="utf-8")
    run = "import importlib, odd; importlib.reload(odd)"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")

    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=120
    )

    assert ("loss.value_is_odd is registered twice, in odd and odd." in done.stderr) == bool(second)
    assert (done.returncode == 0) == (not second)


@by_key
def test_an_invariant_is_found_by_either_name(made: Invariant) -> None:
    """`explain`, `select` and `allow` find an invariant bare or with its family."""
    assert find_invariants(made.key) == (made,)
    assert made in find_invariants(made.name)


def test_the_page_is_up_to_date() -> None:
    """docs/catalogue.md is what the docstrings say."""
    script = ROOT / "docs" / "make_catalogue.py"
    run = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr


PAGES = {
    "checkpoint.checkpoint_is_complete": "+        optimizer.load_state_dict(state[",
    "loss.gradient_is_bounded": 'limits={"gradient_is_bounded": 0.5}',
    "loop.order_of_samples_does_not_matter": "It has none that can be set.",
    "loop.evaluation_mode_is_on": "](https://github.com/pliang279/MultiBench/issues/26)",
}


@pytest.mark.parametrize("key", PAGES)
def test_a_page_has_code_that_breaks_and_how_to_live_with_it(key: str) -> None:
    """The page of an invariant has broken code, what mends it, an excuse and a limit."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "make_catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    (made,) = find_invariants(key)
    page = "\n".join(pages.invariant_lines(made))
    assert PAGES[key] in page
    assert "## Code that breaks it" in page
    assert f'allow={{"{made.name}": "<reason>"}}' in page


def test_an_explanation_has_the_limit_where_there_is_one() -> None:
    """What is said of a limit is what the invariant asks for."""
    assert has_limit(find_invariants("loss.gradient_is_bounded")[0])
    assert not has_limit(find_invariants("loop.order_of_samples_does_not_matter")[0])


def test_a_former_name_is_refused_with_the_new_one(tmp_path) -> None:
    """Wherever a name may stand; a baseline is read with the new one. No name means two things."""
    former = {name: made for made in catalogue() for name in made.was}
    assert not former.keys() & {made.name for made in catalogue()}
    assert len(former) == sum(len(made.was) for made in catalogue())
    old, made = next(iter(former.items()))
    for ask in (
        lambda: find_invariants(old),
        lambda: check_globs("select", [f"loop.{old}"]),
        lambda: Script("train.py", allow={old: "meant"}),
        lambda: Script("train.py", limits={old: 1.0}),
    ):
        with pytest.raises(DeclarationError, match=rf" It is '{made.name}' now\.$"):
            ask()
    entry = {"subject": "train.py", "invariant": old, "what": "as it was"}
    (read,) = entries_of(json.dumps({"trainguard_baseline": VERSION, "findings": [entry]}))
    assert read.invariant == made.name


def test_of_many_names_the_nearest_are_offered() -> None:
    """A few are all listed; of many only those are that may be meant, among the known ones."""
    names = [made.name for made in catalogue("loop")]
    told = suggest_name("padding", names)
    assert told.startswith(" Did you mean 'padding_does_not_matter', ")
    assert "padding_is_ignored" not in told  # a model's
    assert suggest_name("nothing_like_it", names) == " `trainguard list` shows them all."
    assert suggest_name("loss_is_finit", names) == " Did you mean 'loss_is_finite'?"
    assert suggest_name("x", names[:2]) == f" Known: {', '.join(sorted(names[:2]))}."
