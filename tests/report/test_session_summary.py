"""The closing section, from what reports told."""

from trainguard.core.settings import Settings
from trainguard.report.session_summary import SessionSummary


def entry(**more):
    """Return what one report tells of an invariant that passed."""
    told = {
        "subject": "guard_x.py::a",
        "name": "a",
        "invariant": "value_is_finite",
        "device": "cpu",
        "observed": "cpu-float32",
        "outcome": "passed",
        "points": 100,
        "seconds": 1.0,
        "notes": [],
    }
    return {**told, **more}


def section(*entries) -> list[str]:
    """Return the section after one report for each entry."""
    summary = SessionSummary()
    for number, told in enumerate(entries):
        outcome = "skipped" if told["outcome"] == "skipped" else "error"
        summary.add(f"item {number}", [told], outcome, "")
    return summary.text(Settings()).splitlines()


def test_counts() -> None:
    """Subjects, invariants and outcomes are counted, in a fixed order."""
    head, *_ = section(
        entry(),
        entry(outcome="broken"),
        entry(outcome="excused", subject="guard_x.py::b"),
        entry(outcome="skipped", why="no cuda"),
    )
    assert head == "2 subjects, 4 invariants: 1 passed, 1 excused, 1 broken, 1 skipped"


def test_points_of_a_shared_observation_count_once() -> None:
    """The points of one subject in one configuration count once; others are added."""
    lines = section(entry(points=100), entry(points=300), entry(observed="cpu-bfloat16", points=50))
    assert lines[1] == "3 of 3 items ran, 350 points explored on cpu in 3.0 s"


def test_what_never_ran_is_seen() -> None:
    """An item that was collected and not run is missing in the count."""
    summary = SessionSummary()
    summary.collected |= {"one", "two", "three"}
    summary.add("one", [entry()], "error", "")
    summary.add("two", [entry(outcome="skipped", why="no cuda")], "skipped", "")
    lines = summary.text(Settings()).splitlines()
    assert lines[1].startswith("1 of 3 items ran")
    assert "  skipped   1: no cuda" in lines


def test_the_commonest_reasons_for_skipping_are_told() -> None:
    """Eight of them, the commonest first; pytest has a flag that tells all."""
    rows = [entry(outcome="skipped", why=f"reason {row}") for row in range(10)]
    told = [line for line in section(*rows, rows[9]) if line.startswith("  skipped")]
    assert len(told) == 9
    assert told[0] == "  skipped   2: reason 9"
    assert told[-1] == "  skipped   ... for 2 more reasons, see -rs"


def test_an_item_that_ran_again_counts_once() -> None:
    """As it ended."""
    summary = SessionSummary()
    summary.add("one", [entry(outcome="broken")], "error", "")
    summary.add("one", [entry()], "error", "")
    assert summary.text(Settings()).startswith("1 subject, 1 invariant: 1 passed\n1 of 1 item ran")


def test_what_could_not_be_collected_is_named() -> None:
    """It is no matter of the names of files."""
    summary = SessionSummary()
    summary.uncollected |= {"guard_b.py", "guard_a.py"}
    told = "no subject was found: guard_a.py, guard_b.py could not be collected"
    assert summary.text(Settings()) == told


def test_notes_are_told_once_and_not_without_end() -> None:
    """Equal notes are one, and after twenty a count stands for the rest."""
    lines = section(*(entry(notes=[f"note {n // 2}"]) for n in range(50)))
    notes = [line for line in lines if line.startswith("  note")]
    assert len(notes) == 21
    assert notes[-1].endswith("... and 5 more")


def test_the_slowest_three() -> None:
    """The three slowest subjects are named, with the time of all their invariants."""
    spent = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}
    lines = section(
        *(entry(subject=name, seconds=s / 2) for name, s in spent.items() for _ in "12")
    )
    assert lines[-1] == "  slowest   b 4.0 s, d 3.0 s, c 2.0 s"


def test_a_run_in_which_nothing_took_long() -> None:
    """What took no time to speak of is not listed as slow."""
    assert not [line for line in section(entry(seconds=0.01)) if "slowest" in line]


def test_it_fits_a_terminal() -> None:
    """No line is longer than 100 columns."""
    long = "the first step of `schedule` is taken with a rate of zero " * 3
    everything = ("passed", "excused", "broken", "stale", "unobservable", "skipped", "error")
    lines = section(*(entry(outcome=o, notes=[long], why=long) for o in everything for _ in "1234"))
    assert max(map(len, lines)) <= 100


def test_a_run_is_well_or_not() -> None:
    """Only a run that judged something, and in which nothing failed, is well."""
    summary = SessionSummary()
    assert not summary.well
    summary.add("one", [entry()], "error", "")
    assert summary.well
    summary.add("two", [entry(outcome="stale")], "error", "")
    assert not summary.well
