"""The judges of checkpointing, compiling, low precision and devices, on hand-written traces."""

from math import inf, nan
from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace


def judge(name: str, *seen: Pass, dtype: str = "float32", **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    trace = Trace("net", seen, {"dtype": dtype}, promises)
    return list(find_invariants(f"model.{name}")[0].judge(trace))


def gradient(measured: float, place: str = "a") -> Pass:
    """Write how far the gradient of a parameter is off."""
    return Pass(quantity="checkpointed", place=place, measured=measured, sizes=(("B", 4),))


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (0.0, ""),
        (1e-5, ""),
        (2e-4, "differs by 0.0002 of its norm"),
        (inf, "a gradient on one side only"),
        (nan, "differs by nan of its norm"),
    ],
)
def test_a_gradient_with_checkpointing(measured: float, words: str) -> None:
    """A ten-thousandth of its norm is rounding."""
    found = judge("checkpointing_keeps_gradients", gradient(measured))
    assert [finding.measured for finding in found] == ([words] if words else [])


def test_several_gradients_with_checkpointing() -> None:
    """The worst is told, and how many more there are."""
    seen = [gradient(0.1), gradient(0.3, "b"), gradient(0.2, "c"), gradient(0.0, "d")]
    (finding,) = judge("checkpointing_keeps_gradients", *seen)
    assert (finding.at, finding.elsewhere) == ("b, B=4", ("2 more",))


def test_checkpointing_that_fails_or_saves_nothing() -> None:
    """A failure is broken; a switch without an effect is a note."""
    name = "checkpointing_keeps_gradients"
    (failed,) = judge(name, Pass(quantity="checkpointing fails", measured=1.0, detail="ValueError"))
    assert (failed.rank.value, failed.measured) == ("broken", "ValueError")
    (idle,) = judge(name, Pass(quantity="saved", measured=40.0, reference=40.0))
    assert (idle.rank.value, idle.measured) == ("note", "40 tensors kept for backward")
    assert judge(name, Pass(quantity="saved", measured=12.0, reference=40.0)) == []


@pytest.mark.parametrize(
    ("dtype", "measured", "noise", "rounding", "found"),
    [
        ("bfloat16", 0.12, 1e-7, 0.0, 0),
        ("bfloat16", 0.13, 1e-7, 0.0, 1),
        ("bfloat16", 0.3, 1e-6, 0.0, 0),
        ("bfloat16", 0.6, 1e-6, 0.0, 1),
        ("bfloat16", 0.3, 1e-7, 0.1, 0),
        ("bfloat16", 0.55, 1.0, 1.0, 1),
        ("bfloat16", inf, 1.0, 1.0, 1),
        ("float16", 0.015, 1e-7, 0.0, 0),
        ("float16", 0.02, 1e-7, 0.0, 1),
        ("float16", nan, 1e-7, 0.0, 1),
    ],
)
def test_low_precision(
    dtype: str, measured: float, noise: float, rounding: float, found: int
) -> None:
    """What the noise of the model explains is allowed, from 16 epsilons up to 64."""
    seen = Pass(quantity="precision", place="a", measured=measured, reference=noise, scale=rounding)
    findings = judge("low_precision_agrees", seen, dtype=dtype)
    assert len(findings) == found
    assert all(dtype in finding.summary for finding in findings)


def test_a_limit_for_low_precision() -> None:
    """A subject may allow more."""
    seen = Pass(quantity="precision", measured=0.3, reference=1e-7, scale=0.0)
    name = "low_precision_agrees"
    assert judge(name, seen, dtype="bfloat16", **{f"limit:{name}": 0.4}) == []


@pytest.mark.parametrize(
    ("name", "quantity", "least"),
    [("compiled_agrees_with_eager", "compiled", 1e-4), ("devices_agree", "device", 1e-2)],
)
def test_what_computes_the_same(name: str, quantity: str, least: float) -> None:
    """The least is allowed, and eight times the noise of the model; the worst is told."""

    def found(measured: float, noise: float) -> int:
        """Return how many findings there are."""
        seen = [
            Pass(quantity=quantity, place="a", measured=value, reference=noise)
            for value in (measured, measured / 2)
        ]
        return len(judge(name, *seen))

    assert [found(0.9 * least, 0.0), found(1.1 * least, 0.0)] == [0, 1]
    assert [found(7 * least, least), found(9 * least, least), found(inf, least)] == [0, 1, 1]
    (failed,) = judge(name, Pass(quantity=f"{'compiling' if quantity == 'compiled' else quantity}"
                                 " fails", measured=1.0, detail="RuntimeError: no"))  # fmt: skip
    assert failed.measured == "RuntimeError: no"


def test_a_model_that_fails_under_autocast() -> None:
    """The exception stands in the finding, with the type."""
    seen = Pass(quantity="precision fails", measured=1.0, detail="RuntimeError: overflow")
    (finding,) = judge("low_precision_agrees", seen, dtype="float16")
    assert (finding.measured, finding.rank.value) == ("RuntimeError: overflow", "broken")
    assert finding.summary == "`net` cannot be called under autocast to float16"
