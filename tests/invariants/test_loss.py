"""The judges of losses, on traces written by hand: torch takes no part."""

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.catalogue import catalogue, named
from trainguard.finding import Finding, Rank
from trainguard.trace import Sample, Trace

finite = st.floats(allow_nan=False, allow_infinity=False)
NOT_FINITE = [math.nan, math.inf, -math.inf]


def judged(name: str, *samples: Sample, dtype: str = "float32", **promises) -> list[Finding]:
    """Judge samples with one invariant; a promise `a__b` is called `a:b`."""
    said = {key.replace("__", ":"): value for key, value in promises.items()}
    trace = Trace("nll", samples, {"dtype": dtype}, said)
    return list(named(name)[0].judge(trace))


def sample(quantity: str, measured: float, **more) -> Sample:
    """Write one sample of the input `x`."""
    return Sample(quantity=quantity, measured=measured, **{"input": "x", **more})


def broken(name: str, one: Sample, **promises) -> bool:
    """Say whether one sample breaks an invariant; it may not be a note."""
    found = judged(name, one, **promises)
    assert all(f.rank is Rank.BROKEN and f.event is one for f in found)
    return bool(found)


@pytest.mark.parametrize("name", ["value", "gradient"])
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_what_is_not_finite_is_found(name: str, bad: float) -> None:
    """Nan and both infinities are found, with how many points were like it."""
    one = sample(name, bad, bad=3, points=9, index=(0, 2))
    (finding,) = judged(f"{name}_is_finite", sample(name, 1.0), one)
    assert finding.measured == f"{bad:.4g}  (3 of 9 points)"
    assert finding.at == ("x[0, 2]" if name == "gradient" else "")
    assert finding.why


@given(finite)
def test_finite_numbers_are_finite(number: float) -> None:
    """However large a number is, the finite judges let it pass."""
    assert not broken("value_is_finite", sample("value", number))
    assert not broken("gradient_is_finite", sample("gradient", number))


@pytest.mark.parametrize(
    ("promises", "allowed"),
    [
        ({}, 1e4),
        ({"magnitude__x": 0.1}, 1e4),
        ({"magnitude__x": 20.0}, 2e5),
        ({"magnitude__x": 20.0, "limit__gradient_is_bounded": 7.0}, 7.0),
    ],
    ids=["undeclared", "below one", "declared", "own limit"],
)
def test_gradient_is_bounded(promises: dict, allowed: float) -> None:
    """The bound grows with the declared magnitude, and the subject's own limit replaces it."""
    name = "gradient_is_bounded"
    assert not broken(name, sample("largest_gradient", allowed), **promises)
    assert broken(name, sample("largest_gradient", math.nextafter(allowed, math.inf)), **promises)


@given(st.floats(0, 1e4))
def test_a_small_gradient_is_bounded(size: float) -> None:
    """What is at most 1e4 explodes nowhere, whatever was declared."""
    assert not broken("gradient_is_bounded", sample("largest_gradient", size), magnitude__x=3.0)


@pytest.mark.parametrize(("label", "at"), [("whole", "all inputs"), ("input", "x[1]")])
def test_a_dead_gradient(label: str, at: str) -> None:
    """A plateau is broken where the loss can fall by more than a thousandth of 1 + |loss|."""
    low = sample("plateau", 3e-3, reference=2.0, label=label, index=(1,))
    high = sample("plateau", 3.1e-3, reference=2.0, label=label, index=(1,))
    assert not broken("gradient_is_alive", low)
    (finding,) = judged("gradient_is_alive", high)
    assert (finding.rank, finding.at) == (Rank.BROKEN, at)
    assert (finding.measured, finding.allowed) == (
        "gradient 0, while the loss can fall by 0.0031",
        "a gradient wherever it can fall by more than 0.003",
    )


def test_a_plateau_and_padding_with_a_limit() -> None:
    """The subject's own limit replaces the factor of 1 + |loss|."""
    dead = sample("plateau", 0.5, reference=0.0, label="whole")
    padded = sample("padding", 1.5, reference=1.0, label="m")
    assert broken("gradient_is_alive", dead)
    assert broken("padding_is_ignored", padded)
    assert not broken("gradient_is_alive", dead, limit__gradient_is_alive=0.6)
    assert not broken("padding_is_ignored", padded, limit__padding_is_ignored=0.3)


def test_where_all_is_dead_it_is_said_once() -> None:
    """A plateau of the whole loss covers those of its inputs."""
    plateaus = [sample("plateau", 1.0, reference=0.0, label=w) for w in ("input", "whole")]
    (finding,) = judged("gradient_is_alive", *plateaus)
    assert finding.summary == "every gradient of `nll` is dead"


def test_an_input_that_no_gradient_reaches_is_a_note() -> None:
    """It is one at every point only, and its plateaus are not told again."""
    reached = sample("unreached", 0.0, bad=8, points=9)
    never = sample("unreached", 0.0, bad=9, points=9)
    dead = sample("plateau", 1.0, reference=0.0, label="input")
    assert [f.rank for f in judged("gradient_is_alive", reached, dead)] == [Rank.BROKEN]
    (note,) = judged("gradient_is_alive", never, dead)
    assert (note.rank, note.at) == (Rank.NOTE, "x")


@pytest.mark.parametrize(
    ("jump", "reference", "scale", "expected"),
    [
        (2.9e-3, 2.0, 0.0, False),
        (3.1e-3, 2.0, 0.0, True),
        (0.5, 0.0, 0.06, False),
        (0.7, 0.0, 0.06, True),
    ],
    ids=["small", "large", "steep", "a jump on a slope"],
)
def test_jumps(jump: float, reference: float, scale: float, expected: bool) -> None:
    """A jump is held against the loss and against what the loss moves on both sides of it."""
    one = sample("jump", jump, reference=reference, scale=scale)
    assert broken("gradient_is_continuous", one) is expected


def test_a_jump_with_a_limit() -> None:
    """The subject's own limit replaces the whole allowance."""
    one = sample("jump", 0.5, reference=0.0)
    assert broken("gradient_is_continuous", one)
    assert not broken("gradient_is_continuous", one, limit__gradient_is_continuous=0.6)


DIFFERENCE = "gradient_matches_finite_difference"


@pytest.mark.parametrize(
    ("autograd", "slope", "doubt", "expected"),
    [
        (1.0, 1.00009, 0.0, False),
        (1.0, 1.0002, 0.0, True),
        (1000.0, 1000.09, 0.0, False),
        (1000.0, 1000.2, 0.0, True),
        (1.0, 2.0, math.inf, False),
        (1.0, 2.0, 0.5, True),
    ],
    ids=["near", "far", "near and large", "far and large", "in doubt", "beyond its doubt"],
)
def test_differences(autograd: float, slope: float, doubt: float, expected: bool) -> None:
    """The two slopes agree within 1e-4 of the larger scale, plus the difference's own doubt."""
    one = sample("difference", autograd, reference=slope, scale=doubt, label="custom")
    assert broken(DIFFERENCE, one) is expected
    assert not broken(DIFFERENCE, one, limit__gradient_matches_finite_difference=2.0)


def test_a_difference_of_own_operations_is_a_note() -> None:
    """Without a custom backward, a detach may be meant."""
    one = sample("difference", 1.0, reference=2.0, label="own")
    assert [f.rank for f in judged(DIFFERENCE, one)] == [Rank.NOTE]


@pytest.mark.parametrize(("dtype", "allowed"), [("bfloat16", 0.125), ("float16", 0.015625)])
def test_low_precision(dtype: str, allowed: float) -> None:
    """The error may be 16 machine epsilons of the dtype, or the subject's own limit."""
    name, beyond = "low_precision_agrees", math.nextafter(allowed, 1)
    assert not broken(name, sample("precision", allowed), dtype=dtype)
    (finding,) = judged(name, sample("precision", beyond), dtype=dtype)
    assert finding.summary == f"the {dtype} gradient of `nll` is far from the exact one"
    own = {"limit__low_precision_agrees": 0.5}
    assert not broken(name, sample("precision", 0.4), dtype=dtype, **own)


def test_devices() -> None:
    """A device may be off by a thousandth, or by the subject's own limit."""
    one = sample("device", 2e-3, label="cuda")
    assert not broken("devices_agree", sample("device", 1e-3, label="cuda"))
    assert not broken("devices_agree", one, limit__devices_agree=0.01)
    (finding,) = judged("devices_agree", one)
    assert "between cpu and cuda" in finding.summary


@pytest.mark.parametrize(
    ("name", "quantity", "tolerance"),
    [("samples_do_not_mix", "mixing", 1e-3), ("padding_is_ignored", "padding", 1e-5)],
)
@pytest.mark.parametrize("reference", [0.0, -4.0, 4.0])
def test_what_may_not_change(name: str, quantity: str, tolerance: float, reference: float) -> None:
    """A change is held against 1 + |loss|, on both sides."""
    size = tolerance * (1 + abs(reference))
    for sign in (-1, 1):
        inside = sample(quantity, reference + 0.99 * sign * size, reference=reference, label="m")
        outside = sample(quantity, reference + 1.01 * sign * size, reference=reference, label="m")
        assert not broken(name, inside)
        assert broken(name, outside)


def test_mixing_with_a_limit() -> None:
    """The subject's own limit replaces the tolerance."""
    one = sample("mixing", 1.5, reference=1.0)
    assert broken("samples_do_not_mix", one)
    assert not broken("samples_do_not_mix", one, limit__samples_do_not_mix=0.3)


def test_a_gradient_in_padding() -> None:
    """No gradient at all may reach padding, and the place says which mask was meant."""
    assert not broken("padding_is_ignored", sample("padding_gradient", 0.0))
    one = sample("padding_gradient", 1e-12, index=(0, 3), label="keep")
    (finding,) = judged("padding_is_ignored", one)
    assert finding.at == "x[0, 3] where keep marks padding"


def components(**pulls: float) -> list[Sample]:
    """Write one sample for the pull of each component."""
    return [sample("component", pull, label=name, input="") for name, pull in pulls.items()]


@pytest.mark.parametrize(
    ("pulls", "expected"),
    [
        ({"kl": 1.0, "pixels": 1000.0}, []),
        ({"kl": 1.0, "pixels": 1001.0}, ["pixels against kl"]),
        ({"kl": 1.0, "other": 0.5, "pixels": 1001.0}, ["pixels against other"]),
        ({"kl": 0.0, "pixels": 1001.0}, []),
        ({"kl": math.nan, "pixels": 1001.0}, []),
        ({"pixels": 1001.0}, []),
    ],
    ids=["allowed", "drowned", "the weakest", "no gradient", "nan", "alone"],
)
def test_components(pulls: dict[str, float], expected: list[str]) -> None:
    """The strongest component is held against the weakest that has a gradient."""
    found = judged("components_are_balanced", *components(**pulls))
    assert [f.at for f in found] == expected
    limit = {"limit__components_are_balanced": 1e5}
    assert judged("components_are_balanced", *components(**pulls), **limit) == []


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1.0, False), (1.0009, False), (0.9991, False), (1.0011, True), (0.9989, True)]
    + [(bad, True) for bad in NOT_FINITE],
)
def test_likelihoods(total: float, expected: bool) -> None:
    """Probabilities sum to one within a thousandth; nan is no sum."""
    one = sample("likelihood", total)
    assert broken("likelihood_sums_to_one", one) is expected
    if math.isfinite(total):
        assert not broken("likelihood_sums_to_one", one, limit__likelihood_sums_to_one=0.1)


@pytest.mark.parametrize(
    ("quantity", "rank"),
    [
        ("mutated", Rank.BROKEN),
        ("changed", Rank.BROKEN),
        ("reseeded", Rank.BROKEN),
        ("printed", Rank.NOTE),
        ("warned", Rank.NOTE),
    ],
)
def test_what_a_call_does_besides(quantity: str, rank: Rank) -> None:
    """Edits, settings and seeds are broken, each at its place; printing and warning are notes."""
    (finding,) = judged("call_leaves_no_trace", sample(quantity, 1.0, label="from 1 to 2"))
    at = "the stream of x" if quantity == "reseeded" else "x"
    assert (finding.rank, finding.at, finding.measured != "") == (rank, at, True)


def test_an_empty_trace_breaks_nothing() -> None:
    """No judge objects to what was not seen."""
    trace = Trace("nll", (), {"dtype": "bfloat16"})
    assert [made.name for made in catalogue("loss") if list(made.judge(trace))] == []


def test_every_judge_is_tested_here() -> None:
    """An invariant that is added to the family is to be added to this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    names = {made.name for made in catalogue("loss")}
    assert [n for n in sorted(names) if n not in text and not n.endswith("_is_finite")] == []


def test_a_finding_fits_its_rows() -> None:
    """Summaries name the subject and hold no numbers; guesses hedge; all is ASCII."""
    for finding in every_finding():
        words = [finding.summary, finding.measured, finding.allowed, finding.why]
        assert "`nll`" in finding.summary
        assert not any(letter.isdigit() for letter in finding.summary.replace("float16", ""))
        assert all(word.isascii() for word in words)


def every_finding() -> list[Finding]:
    """Return one finding or more of every judge, from samples that are wrong in all ways."""
    quantities = (
        "value gradient largest_gradient plateau unreached jump difference precision device mixing"
        " padding padding_gradient likelihood"
    )
    wrong = [sample(q, 1e30, reference=0.0, label="whole") for q in quantities.split()]
    wrong += [sample("value", math.nan), sample("gradient", math.nan)]
    wrong += components(kl=1.0, pixels=1e9)
    found = []
    for made in catalogue("loss"):
        told = made.name == "call_leaves_no_trace"
        samples = [sample("mutated", 1.0), sample("warned", 1.0, label="w")] if told else wrong
        findings = judged(made.name, *samples, dtype="float16")
        assert findings, made.name
        found += findings
    return found


def test_judging_needs_no_torch(pytester: pytest.Pytester) -> None:
    """The judges are found and called without torch, NumPy or Hypothesis."""
    code = (
        "import sys\n"
        "from trainguard.catalogue import catalogue\n"
        "from trainguard.trace import Trace\n"
        "assert [list(made.judge(Trace('nll'))) for made in catalogue('loss')]\n"
        "assert not {'torch', 'numpy', 'hypothesis'} & sys.modules.keys()\n"
    )
    assert pytester.run(sys.executable, "-c", code).ret == 0
