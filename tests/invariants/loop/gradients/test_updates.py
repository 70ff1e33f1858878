"""The judges of how gradients and updates are spread."""

from math import inf, nan

import pytest

from trainguard.core.finding import Rank


def layers(*sizes: float):
    """Write layers of 100 elements whose gradients have these root mean squares."""
    return tuple((f"Net.fc{n}.weight", 10 * size, 100) for n, size in enumerate(sizes))


@pytest.mark.parametrize(("turned", "verb"), [(False, "vanish"), (True, "explode")])
def test_a_gradient_that_changes_with_depth_is_found(turned, verb: str, judged, steps) -> None:
    """Both ends are named, and which way it goes."""
    sizes = (1e-9, 1e-6, 1e-3, 1.0)
    run = steps(20, layers=layers(*(reversed(sizes) if turned else sizes)))
    (finding,) = judged("layer_gradients_are_balanced", run)
    assert finding.summary == f"the gradients of `train` {verb} toward its first layers"
    names = ("Net.fc3.weight", "Net.fc0.weight") if turned else ("Net.fc0.weight", "Net.fc3.weight")
    assert finding.at == f"step 0, {names[0]} against {names[1]}"
    assert finding.measured == "ratio 1e-09, median of 20 steps"
    assert (finding.allowed, finding.rank) == ("ratio 1e-07", Rank.BROKEN)
    assert "perhaps" in finding.why


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1e-6, 1e-3, 1.0), ["note"]),
        ((2e-5, 1e-3, 1.0), []),
        ((1e-9, 1.0), []),
        ((0.0, 1e-9, 1.0), []),
        ((0.0, 1e-9, 1e-4, 1.0), ["broken"]),
        ((1.0, 1e-9, 1e-9, 0.5, 1e-9, 1.0), []),
        ((nan, 1e-9, 1e-4, 1.0), ["broken"]),
        ((1e-9, 1e-4, 1.0, inf), ["broken"]),
        ((1.0, 1.0, 1.0), []),
        ((), []),
    ],
    ids=[
        "noted",
        "within",
        "two",
        "unreached",
        "unreached and three",
        "layer scale",
        "unknown",
        "infinite",
        "equal",
        "none",
    ],
)
def test_balance(sizes: tuple, expected: list, ranks, steps) -> None:
    """Only three weights and more that fall or rise with depth are judged."""
    assert ranks("layer_gradients_are_balanced", steps(20, layers=layers(*sizes))) == expected


def test_what_is_no_number_is_no_part_of_the_ratio(judged, steps) -> None:
    """An infinite gradient is another judgement; the layers beside it are compared."""
    run = steps(20, layers=layers(2e-9, 1e-4, 1e-3, inf))
    (finding,) = judged("layer_gradients_are_balanced", run)
    assert (finding.measured, finding.rank) == ("ratio 2e-06, median of 20 steps", Rank.NOTE)


def test_two_surveys_are_the_least(ranks, steps) -> None:
    """One surveyed step may be an odd batch; half of several may be too."""
    bad, good = layers(1e-9, 1e-5, 1.0), layers(0.1, 0.2, 1.0)
    assert ranks("layer_gradients_are_balanced", steps(1, layers=bad)) == []
    assert ranks("layer_gradients_are_balanced", steps(2, layers=bad)) == ["broken"]
    mixed = steps(20, layers=lambda i: bad if i < 10 else good)
    assert ranks("layer_gradients_are_balanced", mixed) == []


def test_the_ratio_that_is_allowed_is_the_subjects(judged, steps) -> None:
    """With a limit of its own a subject is broken above the documented one too."""
    run = steps(20, layers=layers(1e-6, 1e-3, 1.0))
    (finding,) = judged(
        "layer_gradients_are_balanced", run, **{"limit:layer_gradients_are_balanced": 2e-6}
    )
    assert (finding.rank, finding.allowed) == (Rank.BROKEN, "ratio 2e-06")


def test_a_large_update_without_gain_is_noted(judged, steps) -> None:
    """The weights are replaced in each step, and the loss is where it was."""
    run = steps(40, update=5.0, weight=10.0, loss=2.0)
    (finding,) = judged("update_ratio_is_healthy", run)
    assert finding.summary == "the updates of `train` are as large as its parameters"
    assert finding.measured == "0.5 of the parameters' norm"
    assert (finding.allowed, finding.rank, finding.at) == ("at most 0.1", Rank.NOTE, "step 39")
    assert "too high" in finding.why


@pytest.mark.parametrize(
    "more",
    [
        {"loss": lambda i: 2.0 * 0.9**i},
        {"loss": -1.0},
        {"loss": nan},
        {"update": lambda i: 5.0 if i < 20 else 0.5},
        {"update": lambda i: 5.0 if i % 10 == 0 else nan},
        {"weight": 0.0},
        {"weight": nan},
        {"norm": 0.0},
        {"count": 19},
    ],
    ids=["falls", "sign", "unknown", "first", "few", "zero", "no weight", "no gradient", "short"],
)
def test_large_updates_that_may_be(more: dict, ranks, steps) -> None:
    """A loss that falls, or that says nothing, and a ratio that comes down are left alone."""
    more = {"count": 40, "update": 5.0, "weight": 10.0, "loss": 2.0, **more}
    assert ranks("update_ratio_is_healthy", steps(**more)) == []


def test_the_least_that_is_judged(ranks, steps) -> None:
    """Five surveys and twenty steps are enough for large updates, two surveys for lost ones."""
    large = {"update": lambda i: 5.0 if i % 4 == 0 else nan, "weight": 10.0, "loss": 2.0}
    assert ranks("update_ratio_is_healthy", steps(20, **large)) == ["note"]
    assert ranks("update_ratio_is_healthy", steps(2, update=1e-9, weight=10.0)) == ["note"]


def test_large_updates_of_a_gan_are_left_alone(ranks, steps) -> None:
    """With several optimizers no loss says whether there is a gain."""
    large = {"update": 5.0, "weight": 10.0, "loss": 2.0}
    run = [*steps(40, **large), *steps(40, optimizer="Adam#2", **large)]
    assert ranks("update_ratio_is_healthy", run) == []


def test_updates_that_are_rounded_off_are_noted(judged, steps) -> None:
    """Weights in bfloat16 do not move by a millionth of themselves."""
    (finding,) = judged("update_ratio_is_healthy", steps(40, update=0.0, weight=10.0))
    assert finding.summary == "the updates of `train` are lost in its parameters"
    assert (finding.measured, finding.allowed) == ("0 of the parameters' norm", "at least 1e-08")
    assert (finding.rank, finding.at) == (Rank.NOTE, "step 0")
    assert "too coarse" in finding.why


@pytest.mark.parametrize(
    "more",
    [
        {"update": lambda i: 0.1 if i == 0 else 0.0},
        {"rates": lambda i: (1e-3,) if i % 7 == 3 else (1e-9,)},
        {"rates": (0.0,)},
        {"rates": ()},
        {"norm": 0.0},
        {"update": lambda i: 0.0 if i == 20 else nan},
    ],
    ids=["converged", "low rate", "no rate", "by hand", "no gradient", "one survey"],
)
def test_small_updates_that_may_be(more: dict, ranks, steps) -> None:
    """What moved once, or is moved by a small rate on purpose, is left alone."""
    more = {"update": lambda i: nan if i % 7 == 3 else 1e-9, "weight": 10.0, **more}
    assert ranks("update_ratio_is_healthy", steps(40, **more)) == []


def test_the_ratio_of_updates_is_the_subjects(ranks, steps) -> None:
    """The documented tenth can be overridden."""
    run = steps(40, update=5.0, weight=10.0, loss=2.0)
    limit = {"limit:update_ratio_is_healthy": 0.6}
    assert ranks("update_ratio_is_healthy", run, **limit) == []
