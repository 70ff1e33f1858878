"""The judges of gradient clipping."""

from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe

PARTIAL = {"clip": "partial", "clip_limit": 1.0, "clip_share": 0.1, "unclipped": "Net.rnn.weight"}
BOUND = {"clip": "taken", "norm": 0.01, "clip_limit": 0.01}


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("empty", "not there"),
        ("no parameters", "no parameter at all"),
        ("scaled", "still scaled"),
        ("undone", "other gradients than it clipped"),
    ],
)
def test_clipping_without_effect_is_found(kind: str, word: str, judged, steps) -> None:
    """Each kind has its own words, and the line that clips is named."""
    line = "/home/me/train.py:30"
    run = steps(20, clip=kind, clip_limit=1.0, clip_source=line, scale=65536.0)
    (finding,) = judged("clipping_takes_effect", run)
    assert word in finding.summary
    assert (finding.at, finding.source, finding.rank) == ("step 0", line, Rank.BROKEN)
    assert finding.measured == "20 of 20 steps"
    assert finding.allowed == "at most half of 20 steps"
    assert finding.why


@pytest.mark.parametrize("kind", ["empty", "undone"])
def test_clipping_to_an_unknown_limit_is_judged(kind: str, judged, steps) -> None:
    """What clipping saw does not depend on its limit; without a line of its own, the step's is."""
    (finding,) = judged("clipping_takes_effect", steps(20, clip=kind))
    assert finding.source == "/home/me/train.py:12"


def test_a_part_that_is_left_out_is_named(judged, steps) -> None:
    """The norm of the step is held against what clipping allowed, and a parameter named."""
    (finding,) = judged("clipping_takes_effect", steps(20, norm=5.0, **PARTIAL))
    assert finding.summary == "`train` clips a part of its gradients only"
    assert finding.at == "step 0, Net.rnn.weight"
    assert finding.measured == "norm 5 in the step, 20 of 20 steps"
    assert (finding.allowed, finding.rank) == ("at most 2 times 1", Rank.BROKEN)
    (finding,) = judged("clipping_takes_effect", steps(1, norm=5.0, **{**PARTIAL, "unclipped": ""}))
    assert finding.at == "step 0"


@pytest.mark.parametrize(
    "more",
    [
        {**PARTIAL, "norm": 1.9},
        {**PARTIAL, "norm": lambda i: 5.0 if i < 10 else 1.5},
        {**PARTIAL, "norm": 5.0, "clip_share": 0.9},
        {**PARTIAL, "norm": 5.0, "clip_limit": nan},
        {**PARTIAL, "norm": nan},
        {"clip": "taken", "clip_limit": 1.0},
        {"clip": ""},
        {"clip": lambda i: "empty" if i % 2 else "taken"},
        {"clip": "empty", "skipped": True},
    ],
    ids=[
        "within",
        "half",
        "small rest",
        "unknown limit",
        "unknown norm",
        "taken",
        "none",
        "now and then",
        "skipped",
    ],
)
def test_clipping_that_does_no_harm(more: dict, ranks, steps) -> None:
    """A part that is small, and clipping that works, is left alone."""
    assert ranks("clipping_takes_effect", steps(20, **more)) == []


def test_the_factor_of_a_partial_clipping_is_the_subjects(ranks, steps) -> None:
    """The documented factor of two can be overridden."""
    run = steps(20, norm=5.0, **PARTIAL)
    assert ranks("clipping_takes_effect", run, **{"limit:clipping_takes_effect": 6.0}) == []


def test_only_steps_that_clip_are_counted(ranks, steps) -> None:
    """Clipping that runs in a tenth of the steps and fails in each is found."""
    assert ranks("clipping_takes_effect", steps(20, clip=lambda i: "empty" * (i % 10 == 0))) == [
        "broken"
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"scale": 1.0, "clip_limit": 0.001},
        {"clip_limit": 65536.0},
        {"clip_limit": inf},
        {"clip_limit": 5.0, "scale": 256.0, "norm_before": 40.0},
        {"clip_limit": 25.6, "scale": 256.0, "norm_before": 500.0},
    ],
    ids=["no scaler", "scaled limit", "measures only", "small factor", "far above"],
)
def test_scaled_gradients_may_be_clipped_on_purpose(more: dict, ranks, steps) -> None:
    """A limit times the scaler's factor is as good as unscaling; an infinite one only measures."""
    run = steps(20, **{"clip": "scaled", "clip_limit": 1.0, "scale": 65536.0, **more})
    assert ranks("clipping_takes_effect", run) == []


def test_a_limit_that_takes_nearly_all_away_is_not_meant_for_scaled_gradients(ranks, steps) -> None:
    """With a factor of 256 a limit of 5 is two hundredths of it."""
    run = steps(20, clip="scaled", clip_limit=5.0, scale=256.0, norm_before=500.0)
    assert ranks("clipping_takes_effect", run) == ["broken"]


@pytest.mark.parametrize(
    ("order", "more", "expected"),
    [
        ("backward clip unscale", {"scale": 1024.0}, ["still scaled"]),
        ("backward unscale clip", {"scale": 1024.0}, []),
        ("backward clip forward backward", {"norm": 3.0}, ["other gradients"]),
        ("clip forward backward", {"norm": 3.0}, ["other gradients"]),
        ("forward backward", {"norm": 3.0}, []),
        ("backward clip forward backward", {"norm": 1.0}, []),
        ("backward clip forward backward clip", {"norm": 3.0}, []),
    ],
    ids=[
        "before unscale",
        "after it",
        "before backward",
        "first",
        "unseen",
        "within the limit",
        "again after it",
    ],
)
def test_the_order_in_the_window_is_judged(order, more, expected, judged, steps) -> None:
    """Backward, unscale, clip, step: another order is found where the norm shows it."""
    run = steps(20, clip="taken", clip_limit=1.0, order=tuple(order.split()), **more)
    found = judged("clipping_takes_effect", run)
    assert [word in f.summary for f, word in zip(found, expected, strict=True)] == [True] * len(
        expected
    )


def test_the_order_of_two_optimizers_says_nothing(ranks, steps) -> None:
    """What was clipped before the last backward may be the other network."""
    order = ("backward", "clip", "forward", "backward")
    run = steps(20, clip="taken", clip_limit=1.0, order=order, norm=3.0)
    assert ranks("clipping_takes_effect", [*run, *steps(20, optimizer="Adam")]) == []
    assert ranks("clipping_takes_effect", run) == ["broken"]
    run = steps(20, clip="taken", clip_limit=1.0, order=("clip", "unscale"), scale=1024.0)
    assert ranks("clipping_takes_effect", [*run, *steps(20, optimizer="Adam")]) == []


def test_an_optimizer_without_gradients_has_none_to_clip(ranks, steps) -> None:
    """Where tasks take turns, clipping finds nothing in the steps of the other task."""
    other = steps(20, optimizer="Adam")
    run = steps(20, clip="empty", received=0)
    assert ranks("clipping_takes_effect", [*run, *other]) == []
    assert ranks("clipping_takes_effect", run) == ["broken"]
    run = steps(20, clip="no parameters", received=0)
    assert ranks("clipping_takes_effect", [*run, *other]) == ["broken"]
    assert ranks("clipping_takes_effect", [*steps(20, clip="empty"), *other]) == ["broken"]


def test_a_single_step_is_judged(ranks, steps) -> None:
    """One step that clips nothing is all of them."""
    assert ranks("clipping_takes_effect", steps(1, clip="no parameters")) == ["broken"]


def test_a_limit_that_binds_in_each_step_is_noted(judged, steps) -> None:
    """The share of steps and the size of the excess are measured."""
    (finding,) = judged("clipping_is_rare", steps(20, norm_before=0.5, **BOUND))
    assert finding.summary == "`train` is clipped in nearly every step"
    assert finding.measured == "100 % of steps, median norm 50 times the limit"
    assert (finding.allowed, finding.rank) == ("at most 90 % of steps", Rank.NOTE)
    assert finding.at == "step 0"


@pytest.mark.parametrize(("norm", "strong"), [(0.99, False), (1.0, True)])
def test_a_limit_a_hundred_times_too_small_has_stronger_words(norm, strong, judged, steps) -> None:
    """With gradients a hundred times the limit, clipping is all there is."""
    line = "/home/me/train.py:30"
    (finding,) = judged("clipping_is_rare", steps(20, norm_before=norm, clip_source=line, **BOUND))
    assert finding.summary.startswith("clipping takes nearly all") is strong
    assert (finding.rank, finding.source) == (Rank.NOTE, line)


@pytest.mark.parametrize(
    ("count", "more", "expected"),
    [
        (99, {"norm_before": 0.05}, []),
        (100, {"norm_before": 0.05}, ["note"]),
        (20, {"norm_before": 0.099}, []),
        (20, {"norm_before": 0.1}, ["note"]),
        (9, {"norm_before": 5.0}, []),
        (10, {"norm_before": 5.0}, ["note"]),
        (20, {"norm_before": 5.0, "clip_limit": lambda i: 0.01 if i % 2 else inf}, ["note"]),
        (20, {"norm_before": lambda i: 5.0 if i % 2 else nan}, ["note"]),
        (20, {"norm_before": lambda i: 5.0 if i < 18 else 0.005}, []),
        (20, {"norm_before": lambda i: 5.0 if i < 19 else 0.005}, ["note"]),
        (20, {"norm_before": 5.0, "norm": 0.4}, []),
        (20, {"norm_before": 5.0, "clip_limit": inf}, []),
        (20, {"norm_before": 5.0, "clip_limit": 0.0, "norm": 0.0}, []),
        (20, {"norm_before": nan}, []),
        (20, {"norm_before": inf}, []),
        (20, {"norm_before": 5.0, "clip": "partial"}, []),
    ],
    ids=[
        "the start of a run",
        "a longer run",
        "near",
        "far",
        "few",
        "enough",
        "measured too",
        "unknown too",
        "90 %",
        "95 %",
        "by value",
        "measures only",
        "limit zero",
        "unknown",
        "infinite",
        "partial",
    ],
)
def test_how_often_is_rare(count: int, more: dict, expected: list, ranks, steps) -> None:
    """Nearly every step, far beyond the limit or in a longer run, is noted and nothing less."""
    assert ranks("clipping_is_rare", steps(count, **{**BOUND, **more})) == expected


def test_how_often_may_be_the_subjects(ranks, steps) -> None:
    """A team that clips on purpose gives its own share."""
    run = steps(20, norm_before=5.0, **BOUND)
    assert ranks("clipping_is_rare", run, **{"limit:clipping_is_rare": 1.0}) == []


def test_a_line_that_clips_for_nothing_is_named(judged, steps) -> None:
    """Where no step shows it by itself."""
    probe = Probe(probe="idle clip", measured=40.0, reference=40.0, source="train.py:30")
    run = [*steps(20, clip="taken", clip_limit=1.0), probe]
    (finding,) = judged("clipping_takes_effect", run)
    assert finding.summary == "gradient clipping in `train` never finds new gradients to clip"
    assert finding.measured == "40 calls found none since the last step"
