"""The whole family: silent on unusual healthy runs, and never at a loss for any trace."""

import re
from dataclasses import MISSING, fields, replace
from typing import get_args, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.core.catalogue import catalogue
from trainguard.events.base import Event
from trainguard.events.loop import LOOP_EVENTS, Step
from trainguard.events.trace import Trace

SAID = """
SGD|by hand|zero|schedule|forward|backward|unscale|clip|evaluate|Net.fc1.weight|taken|empty
no parameters|partial|scaled|undone|repeat|mix|future|rerun|lr|loss|train/grad_norm|p.grad.norm()
cross_entropy|mean|assert p.grad is None
"""
WORDS = st.sampled_from(re.split("[|\n]", SAID))
COUNTS = st.integers(0, 5) | st.integers(0, 2**40)


def values(kind: type) -> st.SearchStrategy:
    """Return what a column of some type may hold."""
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return st.lists(values(parts[0]), max_size=4).map(tuple)
        return st.tuples(*map(values, parts))
    plain = {str: WORDS, bool: st.booleans(), int: COUNTS, float: st.floats()}
    return plain[kind]


def events(kind: type[Event]) -> st.SearchStrategy:
    """Return any event of one kind; columns that are left out keep their default."""
    hints = get_type_hints(kind)
    columns = {c.name: values(hints[c.name]) for c in fields(kind) if c.name != "case"}
    columns |= {"span": st.integers(1, 1000)} if "span" in columns else {}
    needed = {c.name for c in fields(kind) if c.default is MISSING}
    return st.fixed_dictionaries(
        {name: own for name, own in columns.items() if name in needed},
        optional={name: own for name, own in columns.items() if name not in needed},
    ).map(lambda row: kind(**row))


ANY_RUN = st.tuples(st.lists(events(Step), max_size=8), st.integers(1, 12)).map(
    lambda drawn: drawn[0] * drawn[1]
)
OTHERS = st.lists(st.one_of(*map(events, LOOP_EVENTS)), max_size=6)
PROMISES = st.fixed_dictionaries(
    {},
    optional={
        "falls": st.floats(0.01, 0.99),
        "average": st.floats(0.01, 0.999),
        "batch": st.integers(1, 64),
        "frozen": st.just(("Net.*",)),
        "trainable": st.just(("Net.*",)),
    },
)


HEADERS = st.sampled_from([{"ended": "finished"}, {"ended": "stopped"}, {}])


def check(run: list[Event], promises: dict, header: dict) -> None:
    """Judge a trace with the whole family, and check that each finding can be shown."""
    trace = Trace("train", tuple(run), header, promises)
    for finding in (finding for made in catalogue("loop") for finding in made.judge(trace)):
        assert "`train`" in finding.summary
        # Drawn as the name of a function, or of the module that made what a loss was given.
        words = finding.summary.lower().replace("net.fc1.weight", "")
        assert not any(letter.isdigit() for letter in words)
        assert finding.measured
        assert finding.allowed


@settings(max_examples=300, deadline=None)
@given(run=ANY_RUN, others=OTHERS, promises=PROMISES, header=HEADERS)
def test_no_trace_is_too_odd(
    run: list[Event], others: list[Event], promises: dict, header: dict
) -> None:
    """Whatever was recorded, each judge returns findings that can be shown."""
    check([*run, *others], promises, header)


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 60), odd=events(Step), data=st.data(), others=OTHERS, promises=PROMISES)
def test_no_column_is_too_odd(
    count: int, odd: Step, data, others: list[Event], promises: dict, steps
) -> None:
    """A healthy run in which a few columns hold whatever they may is judged too."""
    names = [c.name for c in fields(Step) if c.name not in ("case", "step", "clock")]
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=4))
    more = {name: getattr(odd, name) for name in chosen}
    run = [replace(step, **more) for step in steps(count)]
    check([*run, *others], promises, {"ended": "finished"})


def test_unusual_healthy_runs_are_left_alone(unusual: list[Event]) -> None:
    """What a naive judge would object to, and what is meant, is found by none."""
    trace = Trace("train", tuple(unusual), conditions={"ended": "finished"})
    found = {made.name: list(made.judge(trace)) for made in catalogue("loop")}
    assert {name: findings for name, findings in found.items() if findings} == {}
