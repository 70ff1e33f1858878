"""The judge of averaged copies."""

from collections.abc import Callable
from math import nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Average

FOLLOWS = "average_follows_model"
LIMIT = f"limit:{FOLLOWS}"


def look(
    decay: Callable[[int], float] | float = 0.996,
    count: int = 12,
    every: int = 4,
    name: str = "Encoder#2",
    **more,
) -> list[Average]:
    """Write looks at one copy; a column may be a function of the look's number."""
    row = {"decay": decay, "follows": "Student.encoder", "named": True, **more}
    rows = [{k: v(i) if callable(v) else v for k, v in row.items()} for i in range(count)]
    return [Average(name=name, step=every * i, **own) for i, own in enumerate(rows)]


def frozen(**more) -> list[Average]:
    """Write looks at a copy that never moves."""
    return look(nan, moved=False, **more)


def test_a_decay_that_is_not_the_promised_one(judged, steps) -> None:
    """Weights that are exchanged are told from a decay of its own."""
    (finding,) = judged(FOLLOWS, [*steps(60), *look(0.004)], average=0.996)
    assert finding.summary == "the average of `train` does not have its decay"
    assert finding.at == "Encoder#2, a copy of Student.encoder"
    assert (finding.measured, finding.allowed, finding.rank) == (
        "0.004 (median of 12 looks)",
        "0.996 within 0.0005",
        Rank.BROKEN,
    )
    assert "exchanged" in finding.why
    (finding,) = judged(FOLLOWS, [*steps(60), *look(0.9)], average=0.996)
    assert (finding.measured, finding.why) == ("0.9 (median of 12 looks)", "")


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (0.996, []),
        (0.9964, []),
        (0.9954, ["broken"]),
        (lambda i: 0.996 + 0.004 * i / 12, []),
        (lambda i: min(0.996, (1 + i) / (10 + i)), []),
        (lambda i: i / (i + 1), []),
        (lambda i: 0.9999 - 0.0003 * i, []),
        (lambda i: 0.5 - 0.01 * i, ["broken"]),
        (0.0, ["note"]),
        (nan, []),
        (lambda i: 0.004 if i > 9 else nan, []),
    ],
    ids=[
        "promised",
        "near",
        "off",
        "rising from it",
        "warming up",
        "mean of all",
        "falling to it",
        "falling from it",
        "copied",
        "unknown",
        "few",
    ],
)
def test_decays_by_a_promise(decay, expected: list[str], ranks, steps) -> None:
    """A decay may begin at the promised one, or come nearer to it; a plain copy is a note."""
    assert ranks(FOLLOWS, [*steps(60), *look(decay)], average=0.996) == expected


def test_the_limit_is_a_share_of_what_is_not_kept(ranks, steps) -> None:
    """A tenth of 1 - decay by default."""
    run = [*steps(60), *look(0.9954)]
    assert ranks(FOLLOWS, run, average=0.996, **{LIMIT: 0.5}) == []


def test_one_average_that_keeps_the_promise_is_enough(ranks, steps) -> None:
    """Copies that are called an average go before others; several decays may be kept."""
    other = look(0.5, name="Target", named=False)
    run = [*steps(60), *other, *look(0.996)]
    assert ranks(FOLLOWS, run, average=0.996) == []
    assert ranks(FOLLOWS, [*steps(60), *other], average=0.996) == ["broken"]
    right = look(0.996, name="Target", named=False)
    assert ranks(FOLLOWS, [*steps(60), *right, *look(0.5)], average=0.996) == ["broken"]
    several = [*look(0.9, name="EMA"), *look(0.996, name="EMA#2")]
    assert ranks(FOLLOWS, [*steps(60), *several], average=0.996) == []


def test_a_frozen_average(judged, steps) -> None:
    """With a promise it is broken, in a very short run a note; its model must have moved."""
    (finding,) = judged(FOLLOWS, [*steps(60), *frozen()], average=0.996)
    assert finding.summary == "the average of `train` does not move"
    assert (finding.measured, finding.allowed, finding.rank) == (
        "no move at 12 looks in 44 steps",
        "a decay of 0.996",
        Rank.BROKEN,
    )
    (finding,) = judged(FOLLOWS, [*steps(6), *frozen(count=5, every=1)], average=0.996)
    assert finding.rank is Rank.NOTE
    assert judged(FOLLOWS, [*steps(6), *frozen(count=2)], average=0.996) == []
    still = frozen(student_moved=False)
    assert judged(FOLLOWS, [*steps(60), *still], average=0.996) == []


def test_a_promise_without_a_copy_is_a_note(judged, steps) -> None:
    """A copy kept as a list of tensors is not seen."""
    (finding,) = judged(FOLLOWS, steps(60), average=0.996)
    assert finding.summary == "`train` promises an average, and no copy of its model was found"
    assert (finding.measured, finding.allowed, finding.rank) == (
        "0 copies",
        "1 copy with a decay of 0.996",
        Rank.NOTE,
    )


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        (look(0.9999), []),
        (look(0.004), ["broken"]),
        (look(0.4), ["note"]),
        (look(0.0), []),
        (look(lambda i: min(0.999, (1 + i) / (10 + i)), count=8), []),
        (look(lambda i: 9 / (10 + 4 * i)), ["broken"]),
        (look(lambda i: 9 / (10 + 4 * i), count=5), []),
        (look(lambda i: 9 / (10 + 4 * i) if i else 0.5), []),
        (look(lambda i: 0.45 - 0.0185 * i), []),
        (look(lambda i: 0.9 - 0.04 * i), []),
        (look(lambda i: 0.3 - 0.005 * i), ["note"]),
        (look(lambda i: 0.9 ** (12 * i + 1)), []),
        (look(-0.2), ["broken"]),
        (look(1.1), ["broken"]),
        (look(1.0001), []),
        (look(lambda i: -0.2 if i < 6 else 0.99), []),
        (look(-0.02), []),
        (look(0.9, residual=0.9), ["note"]),
        (look(0.9999, residual=0.9), []),
        (look(0.9, residual=0.9, count=4), []),
        (look(0.9, residual=lambda i: 1 / (i + 1)), []),
        (look(0.9, residual=lambda i: 2.0 - 0.11 * i), []),
        (look(0.9, residual=nan), []),
        (look(shared=True), ["broken"]),
        (frozen(), ["note"]),
        (frozen(every=1, count=8), []),
        (frozen(student_moved=False), []),
        (look(lambda i: 0.99 if i % 3 else nan, moved=lambda i: i % 3 > 0), []),
        (look(nan, stayed=0.6), ["note"]),
        (look(nan, stayed=0.2), []),
        (look(nan, stayed=0.6, count=4), []),
    ],
    ids=[
        "ema",
        "exchanged",
        "keeps little",
        "copied",
        "warming up",
        "warming up, exchanged",
        "warming up, exchanged, seen too soon",
        "falling but for once",
        "falling to more than half of it",
        "falling to a half",
        "falling by little",
        "falling to a copy",
        "away",
        "beyond",
        "rounded",
        "away at first",
        "rounded to nothing",
        "driven",
        "driven by rounding",
        "driven at few looks",
        "late update",
        "later update",
        "unknown residual",
        "shared",
        "frozen",
        "frozen in a short run",
        "nothing to follow",
        "rare",
        "rounds off",
        "rounds off a little",
        "rounds off at few looks",
    ],
)
def test_averages_without_a_promise(looks: list[Average], expected, ranks, steps) -> None:
    """Only copies that are called an average are judged: a target network is copied at times."""
    assert ranks(FOLLOWS, [*steps(60), *looks]) == expected
    unnamed = [Average(**{**row, "named": False}) for row in map(columns, looks)]
    assert ranks(FOLLOWS, [*steps(60), *unnamed]) == []


def columns(one: Average) -> dict:
    """Return the columns of a look."""
    return {name: getattr(one, name) for name in Average.__dataclass_fields__}


@pytest.mark.parametrize(
    ("looks", "summary", "measured", "allowed"),
    [
        (look(shared=True), "shares its parameters", "the same memory", "memory of its own"),
        (look(0.9, residual=0.9), "moved by something else", "0.9 of its moves unexplained", "0.5"),
        (look(stayed=0.6), "rounds its updates off", "0.6 of the elements that lag", "below 0.3"),
        (look(0.004), "keeps hardly anything", "decay 0.004 (median of 12 looks)", "decay 0.5 or"),
        (look(lambda i: 9 / (10 + 4 * i)), "keeps ever less", "decay 0.9 to 0.1667, ", "a d"),
        (look(-0.2), "moves away from", "decay -0.2 (median of 12 looks)", "decay 0 to 1"),
        (frozen(), "does not move", "no move at 12 looks in 44 steps", "a move"),
    ],
)
def test_what_is_said_of_an_average(
    looks, summary: str, measured: str, allowed: str, judged, steps
) -> None:
    """Each kind has its own sentence and its own unit."""
    (finding,) = judged(FOLLOWS, [*steps(60), *looks])
    assert summary in finding.summary
    assert finding.measured.startswith(measured)
    assert finding.allowed.startswith(allowed)
    assert finding.at == "Encoder#2, a copy of Student.encoder"


@pytest.mark.parametrize(("decay", "rank"), [(0.1, "broken"), (0.12, "note"), (0.45, "note")])
def test_what_keeps_little_of_itself(decay: float, rank: str, ranks, steps) -> None:
    """A tenth is what is left where 0.9 was exchanged; more may be meant."""
    assert ranks(FOLLOWS, [*steps(60), *look(decay)]) == [rank]


@pytest.mark.parametrize("looks", [look(shared=True), look(0.9, residual=0.9)])
def test_a_promise_makes_these_broken(looks: list[Average], ranks, steps) -> None:
    """A copy that is the model, or that an optimizer moves, is no average."""
    assert ranks(FOLLOWS, [*steps(60), *looks], average=0.996) == ["broken"]


def test_edges(judged, steps) -> None:
    """No run, one step and one look say nothing."""
    for run in ([], steps(1), [*steps(60), *look(0.004, count=1)]):
        assert judged(FOLLOWS, run) == []
        assert judged(FOLLOWS, run[:1], average=0.996) == []
