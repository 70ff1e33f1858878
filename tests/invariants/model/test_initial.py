"""The judges of a model before it is trained, on hand-written traces."""

from math import inf, log, nan
from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace

SIZES = (("B", 4), ("T", 16))


def judge(name: str, *seen: Pass, **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    trace = Trace("net", seen, promises={key.replace("__", ":"): v for key, v in promises.items()})
    return list(find_invariants(f"model.{name}")[0].judge(trace))


def ranks(name: str, *seen: Pass, **promises: Any) -> list[str]:
    """Judge passes, and return how sure each finding is."""
    return [finding.rank.value for finding in judge(name, *seen, **promises)]


def output(place: str = "output", at: str = "seed 0", **more: Any) -> Pass:
    """Write the range of one output of 100 elements."""
    columns = {"measured": -1.0, "reference": 1.0, "of": 100, "sizes": SIZES, **more}
    return Pass(quantity="output", place=place, at=at, **columns)


def losses(*values: float, quantity: str = "loss", case: int = 0, **more: Any) -> list[Pass]:
    """Write the loss of one seed each."""
    return [
        Pass(quantity=quantity, measured=v, at=f"seed {i}", case=case, sizes=SIZES, **more)
        for i, v in enumerate(values)
    ]


def test_an_output_that_is_no_number() -> None:
    """The worst seed is told once, with the module that it came from."""
    found = judge(
        "outputs_are_finite",
        output(count=3, at="seed 1"),
        output(count=40, at="seed 2", detail="`norm` (LayerNorm)"),
        output("hidden", count=100),
    )
    assert [f.at for f in found] == ["output, seed 2, B=4 T=16"]
    assert (found[0].measured, found[0].allowed) == ("40 of 100 elements", "0 of 100 elements")
    assert found[0].why == "the first came from `norm` (LayerNorm)"


def test_an_infinity_on_purpose_is_no_finding() -> None:
    """The observer counts none of them."""
    assert judge("outputs_are_finite", output(detail="infinite on purpose"), *losses(2.0)) == []


@pytest.mark.parametrize("lost", [nan, inf])
def test_a_loss_that_is_no_number(lost: float) -> None:
    """It is told where the outputs are finite."""
    found = judge("outputs_are_finite", output(), *losses(2.0, lost))
    assert [f.summary for f in found] == ["the loss of `net` is not finite before training"]
    assert found[0].at == "seed 1, B=4 T=16"


@pytest.mark.parametrize(
    ("values", "expected", "limit", "broken"),
    [
        ((4.3, 4.4, 4.2, 4.5), log(65), None, False),
        ((4.9, 4.9, 4.9, 4.9), log(65), None, False),
        ((5.1, 5.1, 5.1, 5.1), log(65), None, True),
        ((3.3, 3.3, 3.3, 3.3), log(65), None, True),
        ((4.9, 4.9, 4.9, 4.9), log(65), 0.05, True),
        ((2.0, 9.0, 5.0, 6.0), log(65), None, False),  # four seeds that do not tell
        ((0.77, 0.75, 0.78, 0.74), log(2), None, False),
        ((9.0,), log(65), None, True),
        ((nan, nan), log(65), None, False),  # outputs_are_finite has it
        ((-3.0, -3.0), -2.0, None, True),
    ],
)
def test_the_expected_loss(values: Any, expected: float, limit: Any, broken: bool) -> None:
    """A fifth of it is allowed, or the declared share, and what the seeds leave open."""
    promises = {"initial_loss": expected}
    if limit is not None:
        promises["limit__initial_loss_is_expected"] = limit
    found = ranks("initial_loss_is_expected", *losses(*values), **promises)
    assert found == ["broken"] * broken


def test_only_the_first_case_is_held_against_the_expected_loss() -> None:
    """The others have one seed, and the smallest sizes few samples."""
    assert judge("initial_loss_is_expected", *losses(9.0, case=1), initial_loss=log(65)) == []
    seen = [*losses(9.0, 9.0), *losses(4.2, case=1)]
    assert ranks("initial_loss_is_expected", *seen, initial_loss=log(65)) == ["broken"]


@pytest.mark.parametrize(
    ("value", "classes", "found"),
    [
        (6.7, 65, []),
        (6.9, 65, ["note"]),
        (1.5, 2, []),
        (1.6, 2, ["note"]),
        (0.1, 65, []),
        (nan, 65, []),
    ],
)
def test_a_loss_far_above_a_guess_is_a_note(value: float, classes: int, found: list[str]) -> None:
    """Nothing was promised, so it may be meant."""
    seen = losses(value, value, quantity="entropy", place="cross_entropy", of=classes)
    assert ranks("initial_loss_is_expected", *seen) == found
    assert ranks("initial_loss_is_expected", *seen, *losses(4.2, 4.2), initial_loss=4.2) == []


@pytest.mark.parametrize(
    ("glob", "bounds", "at"),
    [
        ("*", (-3.0, 3.0), []),
        ("*", (-3.0, 0.9), ["means, seed 0, B=4 T=16", "scales, seed 1, B=4 T=16"]),
        ("means", (-0.5, 3.0), ["means, seed 0, B=4 T=16"]),
        ("scales", (-3.0, 1.5), ["scales, seed 1, B=4 T=16"]),
        ("other", (0.0, 0.1), []),
    ],
)
def test_the_range_of_an_output(glob: str, bounds: Any, at: list[str]) -> None:
    """The seed that leaves it farthest is told of each output; evaluation is left out."""
    found = judge(
        "initial_outputs_are_in_range",
        output("means"),
        output("scales", reference=1.2),
        output("scales", at="seed 1", reference=2.0),
        output("means", at="evaluation mode", reference=99.0),
        **{f"range__{glob}": bounds},
    )
    assert [f.at for f in found] == at


def test_the_end_that_is_left_farthest_is_measured() -> None:
    """In the unit of the promise."""
    seen = output(measured=-9.0, reference=4.0)
    (found,) = judge("initial_outputs_are_in_range", seen, range__output=(-3, 3))
    assert (found.measured, found.allowed) == ("-9", "-3 to 3")


def test_an_output_without_any_finite_element_has_no_range() -> None:
    """That it is not finite is told by another invariant."""
    seen = output(measured=nan, reference=nan, count=100)
    assert judge("initial_outputs_are_in_range", seen, range__output=(-3, 3)) == []


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (Pass(quantity="twins", place="w", count=1, of=64), ["broken"]),
        (Pass(quantity="twins", place="w", count=3, of=15), ["note"]),
        (Pass(quantity="components", place="means", count=2, of=5), ["broken"]),
        (Pass(quantity="components", place="means", count=0, of=5), []),
        (Pass(quantity="activity", place="act", count=5, of=256), ["note"]),
        (Pass(quantity="activity", place="act", count=6, of=256), []),
        (Pass(quantity="activity", place="act", count=0, of=255), []),
        (Pass(quantity="activity", place="act", count=0, of=256, case=1), []),
    ],
)
def test_parts_that_are_the_same_or_dead(seen: Pass, found: list[str]) -> None:
    """What a loss can never part is broken; what may be meant is a note."""
    assert ranks("components_are_distinct", seen) == found


def test_the_line_of_a_silent_unit_is_told() -> None:
    """It stands in the user's code."""
    seen = Pass(quantity="activity", place="act", count=0, of=999, source="/home/me/net.py:3")
    assert judge("components_are_distinct", seen)[0].source == "/home/me/net.py:3"
