"""The file of a curve: written, read, and refused in one sentence where it is not what it was."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.curves.curve import CONDITIONS, FORMAT, Curve, Unreadable

finite = st.floats(-1e30, 1e30)
words = st.text("abcdefgh0123456789.+ -", max_size=12).map(str.strip)


@st.composite
def drawn(draw: st.DrawFn) -> Curve:
    """Return a curve of any number of points and seeds, with a drift or without."""
    steps = sorted(draw(st.sets(st.integers(0, 10**6), max_size=12)))
    row = st.lists(finite, min_size=len(steps), max_size=len(steps)).map(tuple)
    drift = draw(st.none() | row.map(lambda values: tuple(map(abs, values))))
    return Curve(
        draw(st.sampled_from(["loss", "grad_norm", "loss of Adam#2"])),
        tuple(steps),
        tuple(draw(st.lists(row, min_size=1, max_size=5))),
        drift or (),
        draw(st.integers(0, 10**9)),
        {name: draw(words) for name in CONDITIONS},
    )


BLESSED = Curve("loss", (0, 1, 2), ((2.5, 2.25, 2.0),), (0.0, 1e-7, 2e-7), 3, {"seed": "0"})
TEXT = BLESSED.to_text()
LINES = TEXT.splitlines(keepends=True)


@given(drawn())
def test_a_curve_comes_back_from_its_text(curve: Curve) -> None:
    """Nine digits of each value are kept, and writing it once more changes nothing."""
    again = Curve.from_text(curve.to_text())
    assert again.to_text() == curve.to_text()
    assert (again.column, again.steps, again.made) == (curve.column, curve.steps, curve.made)
    assert dict(again.conditions) == dict(curve.conditions)
    for kept, value in zip(again.runs, curve.runs, strict=True):
        assert kept == pytest.approx(value, rel=1e-8)


@given(drawn(), st.data())
def test_a_cut_is_never_taken_for_a_curve(curve: Curve, data: st.DataObject) -> None:
    """Wherever a file ends too soon, it is refused, and in one sentence."""
    text = curve.to_text()
    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(Unreadable) as refused:
        Curve.from_text(text[:end])
    assert "\n" not in str(refused.value)


@given(drawn(), st.data())
def test_an_edit_is_never_taken_for_a_curve(curve: Curve, data: st.DataObject) -> None:
    """A line that is dropped, doubled, moved or typed over is noticed."""
    lines = curve.to_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    typed = data.draw(st.text("0123456789.e#: abc<>=", min_size=1))
    edits = {
        "dropped": [*lines[:at], *lines[at + 1 :]],
        "doubled": [*lines[: at + 1], *lines[at:]],
        "typed": [*lines[:at], typed, *lines[at + 1 :]],
        "enlarged": [
            *lines[:at],
            re.sub("[0-9]+", "9" * 5000, lines[at], count=1),
            *lines[at + 1 :],
        ],
    }
    edited = edits[data.draw(st.sampled_from(sorted(edits)))]
    if [line.split() for line in edited] == [line.split() for line in lines]:
        return
    with pytest.raises(Unreadable):
        Curve.from_text("\n".join(edited) + "\n")


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    """Nothing but Unreadable is ever raised, and nothing passes."""
    with pytest.raises(Unreadable):
        Curve.from_text(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("# a poem\n", "it is no curve of trainguard"),
        (TEXT.replace(f"format {FORMAT}", "format 9"), "it has the newer format 9, and this"),
        (TEXT.replace(f"format {FORMAT}", "format x"), "it is no curve of trainguard: its format"),
        ("".join(LINES[:-1]), "it is truncated: 2 of 3 points"),
        (TEXT.rstrip("\n"), "it is truncated: its last line has no end"),
        ("".join(LINES[:8]), "it is truncated or edited by hand: it has no line of titles"),
        (TEXT + "3 1.5 3e-07\n", "it is edited by hand: 4 of 3 points"),
        (TEXT.replace("1 2.25", "1 2.26"), "it was edited by hand: its digest is not that"),
        (TEXT.replace("seed: 0", "seed: 1"), "it was edited by hand: its digest is not that"),
        (TEXT.replace("1 2.25", "1 nan"), f"line {len(LINES) - 1} has a value that is not finite"),
        (TEXT.replace("1 2.25", "1 -inf"), f"line {len(LINES) - 1} has a value that is not fini"),
        (TEXT.replace("1 2.25", "1 about"), f"line {len(LINES) - 1} has what is no number"),
        (TEXT.replace("1 2.25", "x 2.25"), f"line {len(LINES) - 1} is no row"),
        (TEXT.replace("2 2 2e-07", "1 2 2e-07"), "it was edited by hand: step 1 follows 1"),
        (TEXT.replace("points: 3", "points: many"), "its header has no number 'points'"),
        (TEXT.replace("# seed: 0", "# seeded"), "is no entry of its header"),
        (
            "".join([*LINES[:-1], "<<<<<<< HEAD\n", LINES[-1], "=======\n", LINES[-1]]),
            f"it has conflict markers of a merge, the first in line {len(LINES)}",
        ),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(text: str, told: str) -> None:
    """It says what is wrong, and where."""
    with pytest.raises(Unreadable) as refused:
        Curve.from_text(text)
    assert told in str(refused.value)


def test_line_endings_of_another_system_are_no_edit() -> None:
    """A checkout that turns every end of line into two characters changes nothing."""
    assert Curve.from_text(TEXT.replace("\n", "\r\n")) == Curve.from_text(TEXT)


def test_the_file_can_be_read_by_people() -> None:
    """Conditions first, then one line for each step."""
    assert LINES[0] == f"# trainguard curve, format {FORMAT}\n"
    assert LINES[-4:] == ["step value drift\n", "0 2.5 0\n", "1 2.25 1e-07\n", "2 2 2e-07\n"]


def test_drift_is_the_worst_so_far() -> None:
    """It is relative, cumulated over the steps, and over all runs that are given."""
    base = Curve("loss", (0, 1, 2), ((4.0, 2.0, 1.0),))
    others = [Curve("loss", (0, 1, 2), (run,)) for run in ((4.0, 2.5, 1.0), (4.4, 2.0, 1.0))]
    assert base.drifting(others).drift == pytest.approx((0.1, 0.25, 0.25))
    assert all(a <= b for a, b in pairwise(base.drifting(others).drift))


def test_a_value_near_zero_is_measured_against_the_size_of_the_curve() -> None:
    """A log-likelihood may cross zero; that is no reason for an alarm."""
    assert Curve("loss", (0, 1), ((10.0, 1e-9),)).scales() == [10.0, 0.01]


def test_a_run_that_is_no_number_elsewhere_drifts_without_bound() -> None:
    """It is not left out of the worst."""
    base = Curve("loss", (0, 1), ((4.0, 2.0),))
    assert base.drifting([Curve("loss", (0, 1), ((4.0, float("nan")),))]).drift[1] == float("inf")
