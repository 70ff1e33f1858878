"""A trace keeps what was seen: read-only, and the same after a way through text."""

import io
import json
import math
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command.compare.runs import run
from trainguard.command.compare.command import CompareRequest, compare
from trainguard.command.compare.side import Side
from trainguard.events.base import Event
from trainguard.events.trace import Sample, Tick, Trace

numbers = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])
words = st.text(max_size=8) | st.sampled_from(["\u2028", "\x85", "\n", '"', "\\", "\x0c"])
nested = st.recursive(numbers | st.integers() | st.booleans(), lambda n: st.lists(n).map(tuple))
plain = st.none() | nested | words
headers = st.dictionaries(words, plain, max_size=4)
samples = st.builds(
    Sample,
    case=st.integers(0, 9),
    quantity=words,
    measured=numbers,
    reference=numbers,
    scale=numbers,
    input=words,
    index=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    bad=st.integers(),
    points=st.integers(),
    point=st.lists(st.tuples(words, nested), max_size=2).map(tuple),
    label=words,
)
ticks = st.builds(
    Tick,
    case=st.integers(0, 9),
    phase=words,
    step=st.integers(0),
    rates=st.lists(numbers).map(tuple),
    reported=st.lists(numbers).map(tuple),
    metric=numbers,
    label=words,
)
traces = st.builds(Trace, words, st.lists(samples | ticks, max_size=4).map(tuple), headers, headers)


@given(traces)
def test_a_trace_comes_back_from_its_text(trace: Trace[Event]) -> None:
    """Every event and header is what it was: nan, infinities, signs of zero and tuples too."""
    text = trace.to_text()
    again = Trace.from_text(text)
    assert repr(again) == repr(trace)  # nan is not equal to nan, and is written alike
    assert again.to_text() == text


@given(traces)
def test_a_line_for_each_event(trace: Trace[Event]) -> None:
    """The text is one line of JSON for the header and one for each event, each of them ASCII."""
    lines = trace.to_text().split("\n")
    assert len(lines) == len(trace) + 2
    assert lines[-1] == ""
    assert all(line.isascii() and json.loads(line) for line in lines[:-1])


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "Sampel", "quantity": "value", "measured": 1.0}',
        '{"event": "Sample", "quantity": "value", "measured": 1.0, "later": 2}',
        '{"quantity": "value", "measured": 1.0}',
    ],
    ids=["unknown event", "unknown column", "no event"],
)
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    """A line of another version is a ValueError that shows it."""
    text = Trace[Sample]("mse").to_text() + line + "\n"
    with pytest.raises(ValueError, match="not an event of this version of trainguard: .*quantity"):
        Trace.from_text(text)


def test_a_line_that_is_no_json_is_refused() -> None:
    """What is no JSON at all is a ValueError too."""
    with pytest.raises(ValueError, match="Expecting value"):
        Trace.from_text(Trace[Sample]("mse").to_text() + "half a li")


def test_a_trace_is_read_only() -> None:
    """A judge can change neither the header nor the events of what it judges."""
    given_promises = {"peak": 1.0}
    trace = Trace("lr", (Tick(phase="run", step=0, rates=(1.0,)),), promises=given_promises)
    given_promises["peak"] = 2.0
    assert trace.promises["peak"] == 1.0
    with pytest.raises(TypeError):
        trace.promises["peak"] = 2.0  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        trace.events[0].step = 1  # type: ignore[misc]


def test_promises_and_limits() -> None:
    """A promise drawn for one case goes before the general one, and a word is no number."""
    trace = Trace[Tick]("lr", promises={"peak": 1, "peak@2": 3.0, "unit": "step", "limit:a": 0.5})
    assert (trace.promise("peak"), trace.promise("peak", 2), trace.promise("peak", 1)) == (1, 3, 1)
    assert (trace.promise("floor"), trace.promise("unit")) == (None, None)
    assert (trace.limit("a", 9.0), trace.limit("b", 9.0)) == (0.5, 9.0)


def test_a_trace_needs_no_torch(pytester: pytest.Pytester) -> None:
    """Reading a trace back imports neither torch nor NumPy."""
    code = (
        "import sys\nfrom trainguard.events.trace import Trace\n"
        f"Trace.from_text({Trace[Sample]('mse').to_text()!r})\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    assert pytester.run(sys.executable, "-c", code).ret == 0


ROWS = run(count=3, evaluated=(0.5,)).to_text().split("\n")[:-1]
odd = plain | st.sampled_from([{}, {"a": 1}, 10**400, [[1]], "\ud800"])


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """Draw the text of a trace, one line of which is not what it was."""
    rows, at = list(ROWS), draw(st.integers(0, len(ROWS) - 1))
    row = json.loads(rows[at])
    column = draw(st.sampled_from(sorted(row)))
    lines = {
        "another value": json.dumps(row | {column: draw(odd)}),
        "a value less": json.dumps({k: v for k, v in row.items() if k != column}),
        "no object": json.dumps(draw(odd)),
        "deep": "[" * 100_000,
        "long": rows[at].replace("1", "9" * 5000, 1),
        "cut": rows[at][: draw(st.integers(0, len(rows[at])))],
        "other letters": rows[at][:5] + draw(st.text(min_size=1)) + rows[at][6:],
    }
    rows[at] = lines[draw(st.sampled_from(sorted(lines)))]
    return "\n".join(rows) + "\n"


@settings(max_examples=100, deadline=None)
@given(mutants())
def test_a_mutant_is_refused_or_compared(text: str) -> None:
    """What is no trace is a ValueError, and whatever is one can be compared."""
    try:
        trace = Trace.from_text(text)
    except ValueError:
        return
    sides = [Side(text=name, traces=(made,)) for name, made in (("a", run(count=3)), ("b", trace))]
    assert compare(CompareRequest(a=sides[0], b=sides[1]), io.StringIO(), io.StringIO()) in (0, 3)


def test_no_trace_at_all() -> None:
    """An empty text is refused too."""
    with pytest.raises(ValueError, match="no header"):
        Trace.from_text("\n")
