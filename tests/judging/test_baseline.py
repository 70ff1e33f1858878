"""A baseline: what is known by which words, what is mended, and which files are read."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.core.errors import DeclarationError
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Place
from trainguard.core.settings import Settings
from trainguard.judging.baseline import Baseline, BaselineEntry, entries_of, read_baseline, still
from trainguard.judging.judge import applicable
from trainguard.judging.verdict import Config, Verdict
from trainguard.subjects.loop import Run

SOURCE = "class Net:\n    def fit(self):\n        loss.backward( )\n\n\nstep()\n"
WORDS = st.text(min_size=1)
ENTRIES = st.builds(BaselineEntry, WORDS, WORDS, *[st.text()] * 6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["findings", "trainguard_baseline", "x"]), inner)
    ),
    max_leaves=9,
)


def broken(*findings: Finding, strict: bool = False) -> Verdict:
    """Return a verdict with findings, of the first invariant of a run."""
    run = Run(name="train.py")
    made = applicable(run, Settings(), ())[0][0]
    return Verdict(run, made, Config(), "broken", findings, strict=strict)


def known(path: Path, *findings: Finding) -> Baseline:
    """Write a baseline of findings, and read it."""
    first = Baseline(path / "known.json", writes=True, root=path)
    first.hold(broken(*findings))
    (path / "known.json").write_text(first.to_text(), encoding="utf-8")
    return read_baseline(path / "known.json")


def at(file: Path, line: int, words: str = "step 3, fc1.weight", **more) -> Finding:
    """Return a finding at a line."""
    return Finding("it broke", words, source=f"{file}:{line}", **more)


def test_lines_that_move(tmp_path) -> None:
    """Other lines and steps are the same finding; another function, parameter or code is not."""
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    baseline = known(tmp_path, at(file, 3))
    (entry,) = baseline.entries
    assert (entry.file, entry.function, entry.code) == ("net.py", "Net.fit", "loss.backward( )")
    assert entry.at == "step N, fc1.weight"
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "net.py").write_text(f"import math\n\n{SOURCE}")
    again = Baseline(moved / "known.json", baseline.entries, root=moved)
    same = again.hold(broken(at(Path("net.py"), 5, "step 70, fc1.weight")))
    assert (same.outcome, same.findings, len(same.known)) == ("known", (), 1)
    for line, words in ((5, "step 3, fc2.weight"), (8, "step 3, fc1.weight")):
        assert again.hold(broken(at(Path("net.py"), line, words))).outcome == "broken"


def test_a_place_that_is_new(tmp_path) -> None:
    """One finding at two places is new where one of them is."""
    baseline = known(tmp_path, Finding("it broke", "fc1"))
    assert baseline.hold(broken(Finding("it broke", "fc1", elsewhere=("fc2",)))).fails
    both = baseline.hold(broken(Finding("it broke", "fc1"), Finding("it broke too", "fc3")))
    assert [f.at for f in both.findings] == ["fc3"]
    assert [f.at for f in both.known] == ["fc1"]


def test_notes_never_enter(tmp_path) -> None:
    """A note that fails under --strict is not written down."""
    note = Finding("it may be broken", "fc1", rank=Rank.NOTE)
    assert known(tmp_path, note).entries == frozenset()
    assert known(tmp_path, note, Finding("it broke", "fc2")).hold(broken(note, strict=True)).fails


def test_what_is_mended(tmp_path) -> None:
    """An entry of what was judged and not found is stale; what was not judged stays as it is."""
    one, two = Finding("it broke", "fc1"), Finding("it broke", "fc2")
    baseline = known(tmp_path, one, two)
    told = baseline.settle(baseline.hold(broken(one)))
    assert (told.outcome, told.mended) == ("stale", ("fc2",))
    assert [entry.at for entry in baseline.renewed()] == ["fc1"]
    fresh = read_baseline(tmp_path / "known.json")
    assert fresh.hold(Verdict(told.subject, told.invariant, Config(), "skipped")).outcome
    assert len(fresh.renewed()) == 2
    passed = Verdict(told.subject, told.invariant, Config("cuda"), "passed")
    assert fresh.settle(fresh.hold(passed)).outcome == "passed"  # on another device


@given(st.lists(ENTRIES, max_size=4))
def test_what_is_written_is_read(entries) -> None:
    """Any entries come back, sorted, and are written alike again."""
    text = Baseline(entries=frozenset(entries)).to_text()
    assert entries_of(text) == sorted(set(entries))
    assert Baseline(entries=frozenset(entries_of(text))).to_text() == text


@given(st.text() | JSON.map(json.dumps))
def test_any_other_text_is_refused(text) -> None:
    """Whatever a file holds, it is read or refused, and nothing else is raised."""
    with suppress(ValueError):
        assert all(entry.subject and entry.invariant for entry in entries_of(text))


@given(st.text())
def test_words_are_stilled_once(words) -> None:
    """What has no numbers any more stays as it is."""
    assert still(Place(still(Place(words)))) == still(Place(words))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("grad_norm (stdout), after 1 step", "grad_norm (stdout), after N step"),
        ("grad_norm (stdout), after 12 steps", "grad_norm (stdout), after N step"),
        ("steps 3, 5 and 1,204 of 4e+05", "steps N of N"),
        ("layers.0.weight, conv1d, x[0, -3]", "layers.0.weight, conv1d, x[N]"),
    ],
)
def test_what_moves_with_a_run(words, told) -> None:
    """Numbers are left out, but for those in names."""
    assert still(Place(words)) == told


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[" * 100_000, "recursion"),
        (b"[tool.trainguard]", "Expecting value"),
        (b"{}", "has no 'trainguard_baseline'"),
        (b'{"trainguard_baseline": 2}', "its version is 2"),
        (b'{"trainguard_baseline": 1}', "no list"),
        (b'{"trainguard_baseline": 1, "findings": [{"subject": "a"}]}', "finding 1 is none"),
        (b'{"trainguard_baseline": 1, "findings": [3]}', "finding 1 is none"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, why) -> None:
    """It is refused with the reason, where it would be written anew too."""
    file = tmp_path / "known.json"
    file.write_bytes(content)
    for update in (False, True):
        with pytest.raises(DeclarationError, match=f"no baseline of trainguard.*{why}"):
            read_baseline(file, update=update)
