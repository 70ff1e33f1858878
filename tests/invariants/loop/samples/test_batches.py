"""The judges of batches: what they weigh, and how many samples they make."""

from math import nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Step, Term
from trainguard.events.probe import Probe

ACCUMULATES = "accumulation_equals_full_batch"
CONSTANT = "effective_batch_is_constant"
TERM = Term(function="cross_entropy", source="/home/me/train.py:9", calls=99)
ORDER = ("zero", "forward", "backward", "forward", "backward")


def micro(steps, count: int = 20, size: int = 8, **more) -> list[Step]:
    """Write steps of micro-batches; `weights` tells how many, and what each weighs."""
    weights = more.pop("weights", (0.25,) * 4)
    of = weights if callable(weights) else lambda _: weights
    row = {
        "weights": of,
        "losses": lambda i: tuple(w * 2.0 for w in of(i)),
        "trained": lambda i: len(of(i)),
        "batch": lambda i: (size,) * len(of(i)),
        "fingerprints": lambda i: tuple(range(70 * i, 70 * i + len(of(i)))),
        "order": ORDER,
    }
    return steps(count, **{**row, **more})


def last_of(length: int, weights: tuple[float, ...]):
    """Return the weights of four even micro-batches, and others at the end of each epoch."""
    return lambda i: weights if i % length == length - 1 else (0.25,) * 4


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0.25,) * 5, ["broken"]), ((0.2,) * 5, []), ((0.25,) * 8, [])],
    ids=["taken over", "divided by five", "twice as many"],
)
def test_windows_that_are_longer(weights, expected: list, ranks, steps) -> None:
    """What is left of an epoch and added to the next window makes that one too heavy."""
    run = [*micro(steps, weights=last_of(5, weights)), TERM]
    assert ranks(ACCUMULATES, run) == expected


def test_a_shorter_window_that_weighs_too_little(judged, steps) -> None:
    """Two of four micro-batches are left at the end of each epoch, divided by four."""
    run = [*micro(steps, weights=last_of(5, (0.25, 0.25))), TERM]
    (finding,) = judged(ACCUMULATES, run)
    assert finding.summary == "the shorter accumulation windows of `train` weigh too little"
    assert (finding.at, finding.measured, finding.allowed) == (
        "step 4, 2 of 4 micro-batches",
        "weights that sum to 0.5",
        "weights that sum to 1 within 0.01",
    )
    assert (finding.rank, finding.source) == (Rank.BROKEN, "/home/me/train.py:12")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((0.25,) * 4, []),
        (last_of(5, (0.5, 0.5)), []),
        (last_of(5, (1.0,)), []),
        (last_of(5, (0.25,)), ["broken"]),
        (lambda i: (0.4, 0.4, 0.2), []),
        (lambda i: (0.4, 0.4, 0.2) if i % 5 else (0.8, 0.2), []),
        (last_of(20, (0.25, 0.25, 0.25)), ["note"]),  # 3 of 79 micro-batches
        ((1.0,), []),
        ((0.1,) * 4, []),
        ((1 / 16,) * 4, ["broken"]),
        (lambda i: (1 / 9,) * 3 if i % 5 else (1 / 2,) * 2, ["broken"]),
        ((0.25,) * 2, []),
        (lambda i: (0.25, 0.25) if i % 5 == 4 else (0.5,) * 4, []),
        ((nan,) * 4, []),
        ((), []),
        ((1.0,) * 4, ["note"]),
        (lambda i: (1.0,) * (2 if i % 5 == 4 else 4), ["note"]),
        ((1 / 64,) * 64, []),
    ],
    ids=[
        "even",
        "by what is left",
        "single left",
        "single too light",
        "by samples",
        "by samples, shorter",
        "at the end of the run",
        "no accumulation",
        "another sum",
        "divided twice",
        "divided twice, but for the shorter",
        "halved and divided",
        "another sum, shorter",
        "unknown",
        "none",
        "added up",
        "added up, shorter",
        "more than is kept",
    ],
)
def test_weights(weights, expected: list[str], ranks, steps) -> None:
    """A sum of one is right however it comes about; a sum of the number is a note."""
    assert ranks(ACCUMULATES, [*micro(steps, weights=weights), TERM]) == expected


def test_micro_batches_that_are_added_up(judged, steps) -> None:
    """The weights of a step sum to their number; one step alone proves nothing."""
    (finding,) = judged(ACCUMULATES, [*micro(steps, weights=(1.0,) * 4), TERM])
    assert finding.summary == "the micro-batches of `train` are added up and not averaged"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 0",
        "weights that sum to 4, in 20 of 20 steps",
        "weights that sum to 1",
        Rank.NOTE,
    )
    assert judged(ACCUMULATES, [*micro(steps, 1, weights=(1.0,) * 4), TERM]) == []
    assert len(judged(ACCUMULATES, [*micro(steps, 2, weights=(1.0,) * 4), TERM])) == 1


def test_the_two_losses_of_a_discriminator_are_no_accumulation(ranks, steps) -> None:
    """Real and fake weigh one each; so do two functions, or two lines, of one optimizer."""
    critic = micro(steps, weights=(1.0, 1.0), optimizer="Adam")
    assert ranks(ACCUMULATES, [*critic, TERM]) == ["note"]
    assert ranks(ACCUMULATES, [*critic, *steps(20, optimizer="Adam#2"), TERM]) == []
    fake = Term(function="cross_entropy", source="/home/me/train.py:14", calls=99)
    assert ranks(ACCUMULATES, [*critic, TERM, fake]) == []
    assert ranks(ACCUMULATES, critic) == []
    measured = Term(function="cross_entropy", source="/home/me/train.py:30", evaluation=True)
    assert ranks(ACCUMULATES, [*critic, TERM, measured]) == ["note"]


@pytest.mark.parametrize(
    "more",
    [
        {"trained": 1},
        {"order": ("zero", "forward", "backward", "zero", "forward", "backward")},
        {"fingerprints": (7, 7, 7, 7)},
        {"losses": (2.0,) * 5},
        {"losses": (2.0,) * 5, "trained": 5},
    ],
    ids=[
        "two losses of one pass",
        "cleared between",
        "one batch again",
        "a loss of its own",
        "a loss that is no mean",
    ],
)
def test_what_only_looks_like_accumulation(more: dict, judged, steps) -> None:
    """Several losses of one batch, the two passes of SAM, and a penalty beside the losses."""
    assert judged(ACCUMULATES, [*micro(steps, weights=(1.0,) * 4, **more), TERM]) == []
    light = micro(steps, weights=last_of(5, (0.25, 0.25)), **more)
    assert judged(ACCUMULATES, [*light, TERM]) == []


def test_the_tolerance_of_a_sum(ranks, steps) -> None:
    """One hundredth by default."""
    run = [*micro(steps, weights=last_of(5, (0.25, 0.25))), TERM]
    assert ranks(ACCUMULATES, run, **{f"limit:{ACCUMULATES}": 1e-4}) == ["broken"]
    near = micro(steps, weights=lambda i: (0.2505,) * 4 if i % 5 else (0.2505,) * 2)
    assert ranks(ACCUMULATES, [*near, TERM]) == ["broken"]
    assert ranks(ACCUMULATES, [*near, TERM], **{f"limit:{ACCUMULATES}": 1e-4}) == []


def test_a_batch_that_is_not_the_promised_one(judged, steps) -> None:
    """Thirty-two on paper, and two micro-batches of one sample in fact."""
    run = micro(steps, size=1, weights=(0.5, 0.5))
    (finding,) = judged(CONSTANT, run, batch=32)
    assert finding.summary == "the steps of `train` are not made from the batch that it promises"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 0, 2 micro-batches",
        "2 samples, in 20 of 20 steps",
        "32 samples",
        Rank.BROKEN,
    )


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((8, 8, 8, 8), []),
        (lambda i: (8, 8, 8, 3) if i % 5 == 4 else (8, 8, 8, 8), []),
        (lambda i: (8, 8, 8, 3) if i % 2 else (8, 8, 8, 8), []),
        (lambda i: (8, 8, 8, 3) if i % 3 else (8, 8, 8, 8), ["broken"]),
        (lambda i: (8, 8, 8, 3) if i in (4, 5, 6) else (8, 8, 8, 8), ["broken"]),
        (lambda i: (8, 8, 8, 3) if i in (4, 5, 16) else (8, 8, 8, 8), []),
        ((16, 16, 16, 16), ["broken"]),
        ((), []),
        ((8, 0, 8, 8), []),
    ],
    ids=["all", "last", "every other", "most", "three", "two", "twice", "unknown", "empty"],
)
def test_batches_by_a_promise(batch, expected: list[str], ranks, steps) -> None:
    """Smaller batches may come one at a time, not most of the time and not three in a row."""
    assert ranks(CONSTANT, micro(steps, batch=batch), batch=32) == expected


def test_passes_that_are_no_micro_batches_are_not_added_up(ranks, steps) -> None:
    """A pair of views, an unrolled cell, the critic of a GAN: the promise is about one pass."""
    views = {"batch": (32, 32), "trained": 2}
    assert ranks(CONSTANT, steps(20, **views), batch=32) == []
    assert ranks(CONSTANT, steps(20, batch=(32,) * 10, trained=10), batch=32) == []
    critic = micro(steps, size=32, weights=(1.0, 1.0), optimizer="Adam")
    gan = [*critic, *steps(20, optimizer="Adam#2", batch=(32,) * 4, trained=4)]
    assert ranks(CONSTANT, gan, batch=32) == []
    assert ranks(CONSTANT, gan, batch=50) == ["broken"] * 2
    assert ranks(CONSTANT, critic, batch=32) == ["broken"]


def test_the_limit_is_a_share_of_the_promise(ranks, steps) -> None:
    """Batches by tokens are only nearly as large as each other."""
    run = micro(steps, batch=(8, 8, 8, 7))
    assert ranks(CONSTANT, run, batch=32) == ["broken"]
    assert ranks(CONSTANT, run, batch=32, **{f"limit:{CONSTANT}": 0.05}) == []


def test_a_long_run_that_was_thinned_out(ranks, steps) -> None:
    """What was kept may be the last batch of every epoch; what counts a pass has its end."""
    assert ranks(CONSTANT, micro(steps, span=8, batch=(8, 8, 8, 3)), batch=32) == []
    assert ranks(CONSTANT, micro(steps, weights=(1 / 64,) * 64, size=1), batch=96) == []


def stages(*held: tuple[int, int, int]):
    """Return the weights and batches of stages: how long, how many micro-batches, their size."""
    rows = [(number, size) for length, number, size in held for _ in range(length)]
    return {
        "count": len(rows),
        "weights": lambda i: (1 / rows[i][0],) * rows[i][0],
        "batch": lambda i: (rows[i][1],) * rows[i][0],
    }


def test_a_product_that_drifts_is_a_note(judged, steps) -> None:
    """The accumulation shrinks, and the loader keeps its batch size."""
    (finding,) = judged(CONSTANT, micro(steps, **stages((10, 4, 2), (10, 2, 2), (10, 1, 2))))
    assert finding.summary == "the number of samples in a step of `train` drifts"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 10, 4 micro-batches, then 2",
        "4 samples",
        "8 samples, as before",
        Rank.NOTE,
    )


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (((10, 4, 2), (10, 2, 4), (10, 1, 8)), []),
        (((10, 3, 42), (10, 4, 32)), ["note"]),
        (((10, 1, 32), (10, 1, 64)), []),
        (((2, 4, 2), (2, 2, 2), (2, 4, 2), (2, 2, 2)), []),
        (((10, 4, 8), (1, 2, 8), (10, 4, 8), (1, 2, 8)), []),
    ],
    ids=["kept", "drifts", "a larger batch", "in turns", "shorter windows"],
)
def test_stages(held, expected: list[str], ranks, steps) -> None:
    """A product that is kept, a batch size that grows alone, and short windows are silent."""
    run = micro(steps, **stages(*held))
    assert ranks(CONSTANT, run) == expected
    assert ranks(CONSTANT, [*run, *steps(20, optimizer="Adam#2")]) == []
    passes = {"losses": (2.0,), "weights": (), "trained": lambda i: 1}
    assert ranks(CONSTANT, micro(steps, **{**stages(*held), **passes})) == []


@pytest.mark.parametrize("name", [ACCUMULATES, CONSTANT])
def test_edges(name: str, judged, steps) -> None:
    """No run and one step say nothing, whatever is promised."""
    for run in ([], steps(1), [TERM], [Step(step=0)]):
        assert judged(name, run, batch=7) == []


@pytest.mark.parametrize(
    ("ratio", "taken", "expected"),
    [(24.0, 8, ["broken"]), (2.0, 8, ["note"]), (1.2, 8, []), (24.0, 2, [])],
)
def test_targets_that_weigh_more_than_others(ratio, taken, expected, ranks) -> None:
    """By how many times as much, in the median of 3 steps or more."""
    probe = Probe(probe="token weight", measured=ratio, reference=1.0, step=taken)
    assert ranks("accumulation_equals_full_batch", [probe]) == expected


@pytest.mark.parametrize(
    ("passes", "returns", "expected"),
    [(3, 1, ["broken"]), (3, 0, ["note"]), (2, 1, [])],
    ids=["a return", "a break", "few"],
)
def test_loops_that_end_in_their_first_round(passes, returns, expected, ranks) -> None:
    """A break may be meant, and two rounds may be a look at the data."""
    probe = Probe(probe="left loop", measured=passes, reference=16, step=returns, label="return x")
    assert ranks("loops_go_through_their_batches", [probe]) == expected


@pytest.mark.parametrize(
    ("steps_of", "known", "expected"),
    [(8, 8, ["broken"]), (2, 2, []), (4, 9, [])],
    ids=["all", "few", "less than half"],
)
def test_mixtures_with_other_labels(steps_of, known, expected, ranks) -> None:
    """Most steps whose parts were found must show it."""
    label = "weights of each other"
    probe = Probe(probe="mixed", measured=steps_of, reference=known, label=label)
    assert ranks("mixtures_keep_their_labels", [probe]) == expected
