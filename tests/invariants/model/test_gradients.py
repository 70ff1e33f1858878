"""The judges of what flows back to the parameters, on hand-written traces."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace


def judge(name: str, *seen: Pass, **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    trace = Trace("net", seen, promises={key.replace("__", ":"): v for key, v in promises.items()})
    return list(find_invariants(f"model.{name}")[0].judge(trace))


def gradient(place: str, count: int = 4, size: float = 1.0, **more: Any) -> Pass:
    """Write what one weight received in four passes."""
    lack = "" if count else "unreached"
    columns = {"of": 4, "reference": 2.0, "detail": lack, **more}
    return Pass(quantity="gradient", place=place, count=count, measured=size, **columns)


def places(*seen: Pass) -> list[str]:
    """Return where gradients are found to lack."""
    return [found.at for found in judge("every_parameter_receives_gradient", *seen)]


@pytest.mark.parametrize(
    ("seen", "at"),
    [
        ([gradient("a.weight"), gradient("a.bias", 1)], []),
        ([gradient("a.weight", 0)], ["a.weight"]),
        ([gradient("a.weight"), gradient("a.bias", 0)], ["a.bias"]),
        # A shift that the next normalisation takes out; but not one that nothing reaches.
        ([gradient("a.weight"), gradient("a.bias", 0, detail="zero")], []),
        (
            [gradient("a.weight", 0, detail="zero"), gradient("a.bias", 0, detail="zero")],
            ["a.* (2 parameters)"],
        ),
        # The outermost module that lacks all is told once.
        (
            [
                gradient("in.w"),
                gradient("net.a.w", 0),
                gradient("net.a.b", 0),
                gradient("net.c", 0),
            ],
            ["net.* (3 parameters)"],
        ),
        (
            [gradient("net.in.w"), gradient("net.a.w", 0), gradient("net.a.b", 0)],
            ["net.a.* (2 parameters)"],
        ),
        # Experts: some are visited in some passes.
        ([gradient("moe.0.up", 3), gradient("moe.1.up", 0), gradient("moe.2.up", 0)], []),
        ([gradient("moe.0.up", 4), gradient("moe.1.up", 0)], ["moe.1.up"]),
        ([gradient("moe.0.up", 3), gradient("moe.1.down", 0)], ["moe.1.down"]),
        ([gradient("h0.up", 3), gradient("h1.up", 0)], ["h1.up"]),
    ],
)
def test_parameters_without_a_gradient(seen: list[Pass], at: list[str]) -> None:
    """What chance or the data choose is not missed."""
    assert places(*seen) == at


@pytest.mark.parametrize(
    ("detail", "words"),
    [("uncalled", "never called"), ("unreached", "autograd never"), ("zero", "exactly zero")],
)
def test_the_likely_reason_is_told(detail: str, words: str) -> None:
    """It hedges where several are possible."""
    seen = gradient("a.weight", 0, detail=detail)
    (found,) = judge("every_parameter_receives_gradient", seen)
    assert words in found.why
    assert (found.measured, found.allowed) == ("in 0 of 4 passes", "in at least 1 of 4 passes")


def test_one_case_that_reaches_a_parameter_is_enough() -> None:
    """Another may have no use for it."""
    assert places(gradient("a.weight", 0), gradient("a.weight", 1, case=1)) == []
    assert places(gradient("a.weight", 1), gradient("a.weight", 0, case=1)) == []


def test_a_gradient_that_is_no_number_is_told_in_any_case() -> None:
    """One case is enough to lose the weights."""
    found = judge(
        "every_parameter_receives_gradient",
        gradient("a.weight"),
        gradient("a.weight", detail="not finite", case=1),
        gradient("b.weight"),
    )
    assert [f.at for f in found] == ["a.weight"]
    assert found[0].summary == "the gradient of a parameter of `net` is not finite"


def stack(*sizes: float, **more: Any) -> list[Pass]:
    """Write the gradients of weights in the order of the model."""
    return [gradient(f"layers.{i}.weight", size=s, **more) for i, s in enumerate(sizes)]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (stack(1.0, 1.0, 1.0), []),
        (stack(1e-8, 1e-4, 1.0), [("broken", "vanish")]),
        (stack(1.0, 1e-4, 1e-8), [("broken", "explode")]),
        (stack(1e-6, 1e-3, 1.0), [("note", "vanish")]),
        (stack(1e-4, 1e-2, 1.0), []),
        (stack(1.0, 1e-9, 1.0, 1e-9, 1.0), []),  # no trend with depth
        (stack(1e-9, 1.0), []),  # too few
        (stack(1e-9, 1e-4, 1.0, reference=1.0), []),  # biases
        (stack(1e-9, 1e-4, 1.0, count=3), []),  # behind gates
        ([*stack(1.0, 1.0, 1.0), *stack(1e-9, 1e-4, 1.0, case=1)], [("broken", "vanish")]),
    ],
)
def test_gradients_over_depth(seen: list[Pass], found: list[Any]) -> None:
    """The smallest over the largest, where they rise or fall with depth."""
    told = judge("layer_gradients_are_balanced", *seen)
    assert [(f.rank.value, f.summary.split()[4]) for f in told] == found


def test_the_limit_of_the_balance() -> None:
    """A subject may allow less, or more."""
    strict = judge(
        "layer_gradients_are_balanced",
        *stack(1e-4, 1e-2, 1.0),
        limit__layer_gradients_are_balanced=1e-3,
    )
    assert [f.rank.value for f in strict] == ["broken"]
    assert (strict[0].measured, strict[0].allowed) == ("ratio 0.0001", "ratio 0.001")
