"""The judges of rounding: low precision, and other devices."""

import math

import pytest


@pytest.mark.parametrize(("dtype", "allowed"), [("bfloat16", 0.125), ("float16", 0.015625)])
def test_low_precision(dtype: str, allowed: float, sample, judged, broken) -> None:
    """The error may be 16 machine epsilons of the dtype, or the subject's own limit."""
    name, beyond = "low_precision_agrees", math.nextafter(allowed, 1)
    assert not broken(name, sample("precision", allowed), dtype=dtype)
    (finding,) = judged(name, sample("precision", beyond), dtype=dtype)
    assert finding.summary == f"the {dtype} gradient of `nll` is far from the exact one"
    own = {"limit__low_precision_agrees": 0.5}
    assert not broken(name, sample("precision", 0.4), dtype=dtype, **own)


def test_devices(sample, judged, broken) -> None:
    """A device may be off by a thousandth, or by the subject's own limit."""
    one = sample("device", 2e-3, label="cuda")
    assert not broken("devices_agree", sample("device", 1e-3, label="cuda"))
    assert not broken("devices_agree", one, limit__devices_agree=0.01)
    (finding,) = judged("devices_agree", one)
    assert "between cpu and cuda" in finding.summary
