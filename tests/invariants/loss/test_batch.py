"""The judges of a batch: samples stay apart, and padding stays out."""

import pytest


@pytest.mark.parametrize(
    ("name", "quantity", "tolerance"),
    [("samples_do_not_mix", "mixing", 1e-3), ("padding_is_ignored", "padding", 1e-5)],
)
@pytest.mark.parametrize("reference", [0.0, -4.0, 4.0])
def test_what_may_not_change(
    name: str, quantity: str, tolerance: float, reference: float, sample, broken
) -> None:
    """A change is held against 1 + |loss|, on both sides."""
    size = tolerance * (1 + abs(reference))
    for sign in (-1, 1):
        inside = sample(quantity, reference + 0.99 * sign * size, reference=reference, label="m")
        outside = sample(quantity, reference + 1.01 * sign * size, reference=reference, label="m")
        assert not broken(name, inside)
        assert broken(name, outside)


def test_mixing_with_a_limit(sample, broken) -> None:
    """The subject's own limit replaces the tolerance."""
    one = sample("mixing", 1.5, reference=1.0)
    assert broken("samples_do_not_mix", one)
    assert not broken("samples_do_not_mix", one, limit__samples_do_not_mix=0.3)


def test_padding_with_a_limit(sample, broken) -> None:
    """The subject's own limit replaces the factor of 1 + |loss|."""
    padded = sample("padding", 1.5, reference=1.0, label="m")
    assert broken("padding_is_ignored", padded)
    assert not broken("padding_is_ignored", padded, limit__padding_is_ignored=0.3)


def test_a_gradient_in_padding(sample, judged, broken) -> None:
    """No gradient at all may reach padding, and the place says which mask was meant."""
    assert not broken("padding_is_ignored", sample("padding_gradient", 0.0))
    one = sample("padding_gradient", 1e-12, index=(0, 3), label="keep")
    (finding,) = judged("padding_is_ignored", one)
    assert finding.at == "x[0, 3] where keep marks padding"
