"""Words that carry data: the number and the place survive all that is done with the words."""

import copy
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.core.finding import Finding
from trainguard.core.measure import Measure, Place, at_step, integer, number, portion
from trainguard.events.loop import Step

numbers = st.floats(allow_nan=False) | st.integers(-(10**12), 10**12)
words = st.text(max_size=8)


@given(numbers, words, words, words)
def test_text_around_a_number_keeps_it(value, before, behind, unit) -> None:
    """Whatever is said around a number, the words are those of an f-string, the number is kept."""
    made = before + number(value, unit) + behind
    assert made == f"{before}{f'{value:.4g} {unit}'.rstrip()}{behind}"
    assert (made.value, made.unit) == (value, unit)


@given(numbers, numbers, words)
def test_the_first_number_counts(value, other, between) -> None:
    """A second number explains the first and does not replace it."""
    made = number(value, "s") + between + number(other, "B")
    assert (made.value, made.unit) == (value, "s")
    late = Measure(between) + number(other, "B")
    assert (late.value, late.unit) == (other, "B")


@given(st.floats(-1e9, 1e9, allow_subnormal=False))
def test_words_and_value_agree(value) -> None:
    """The number that is read is the one that is carried, to the digits that are shown."""
    made = number(value)
    assert made.value == value
    assert float(made) == pytest.approx(value, rel=5.1e-4)
    assert float(integer(value)) == pytest.approx(value, abs=0.5)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_portion(part, whole) -> None:
    """A count among others is said in integer numbers and carries the count."""
    made = portion(part, whole, "batches")
    assert (made, made.value, made.unit) == (f"{part} of {whole} batches", part, "batches")


@given(st.integers(0, 10**9), words, words)
def test_a_place_adds_up(step, name, more) -> None:
    """A step, a coordinate and text become one place that knows both."""
    made = at_step(step) + more + Place(name, coordinate=f"{name}[0]")
    assert made == f"step {step}{more}{name}"
    assert (made.step, made.coordinate) == (step, f"{name}[0]")


@pytest.mark.parametrize(
    ("source", "file", "line"),
    [
        ("/a/train.py:20", "/a/train.py", 20),
        ("C:\\a\\train.py:20", "C:\\a\\train.py", 20),
        ("<ipython>", "<ipython>", None),
        ("", "", None),
    ],
)
def test_a_source_is_a_file_and_a_line(source, file, line) -> None:
    """The line of the user's code is taken apart once, and can be put together again."""
    found = Finding("it broke", at_step(3), source=source)
    assert (found.at.file, found.at.line, found.at.step) == (file, line, 3)
    assert found.source == source


def test_plain_words_will_do() -> None:
    """A judge that has no number gives plain words, which then carry none."""
    found = Finding("it broke", "x[0]", "12 things", "finite", elsewhere=("y",))
    assert (type(found.measured), found.measured.value, found.measured.unit) == (Measure, None, "")
    assert (type(found.at), found.at.step, found.at.coordinate) == (Place, None, "")
    assert [type(place) for place in found.elsewhere] == [Place]


def test_a_finding_that_is_made_of_another_keeps_its_place() -> None:
    """Its event may stand on another line."""
    event = Step(step=0, source="a.py:9")
    found = Finding("it broke", "step 0", event=event, source="a.py:2")
    assert (Finding("it broke", event=event).source, found.source) == ("a.py:9", "a.py:2")
    assert replace(found, summary="it is broken").source == "a.py:2"


@pytest.mark.parametrize("renew", [copy.copy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_finding_travels_with_its_numbers(renew) -> None:
    """Numbers and places survive a copy, and the way between processes."""
    found = renew(Finding("it broke", at_step(3), number(0.5, "s"), source="a.py:2"))
    assert (found.measured.value, found.measured.unit) == (0.5, "s")
    assert (found.at.step, found.source) == (3, "a.py:2")
