"""The judge of what is mixed of data and noise."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


def test_noise_of_a_single_step(judged, steps) -> None:
    """It is broken where a schedule tells it, and else a note."""
    seen = {"probe": "noise levels", "measured": 0.25, "reference": 500.0}
    (single,) = judged("noisiest_inputs_are_noise", [*steps(9), Probe(label="one step", **seen)])
    (early,) = judged("noisiest_inputs_are_noise", [*steps(9), Probe(**seen)])
    assert (single.rank, early.rank) == (Rank.BROKEN, Rank.NOTE)
    assert single.measured.startswith("0.25 of noise (b) at most in 9 of 10 rows")
    assert "cumprod" in single.why


def test_few_rows_and_much_noise(judged, steps) -> None:
    """Nothing is said of either."""
    for measured, rows in ((0.25, 499.0), (0.7, 500.0)):
        probe = Probe(probe="noise levels", measured=measured, reference=rows, label="one step")
        assert judged("noisiest_inputs_are_noise", [*steps(9), probe]) == []


@pytest.mark.parametrize(
    ("mean", "spread", "starts", "expected"),
    [
        (0.5, 0.2887, 1, ["broken"]),
        (0.5, 0.2887, 0, ["note"]),
        (1.0, 0.5, 1, ["note"]),
        (0.3, 0.2887, 1, []),
    ],
    ids=["rand", "no sample", "another mean", "a small mean"],
)
def test_noise_with_a_mean(mean, spread, starts, expected, ranks, steps) -> None:
    """That of rand is wrong where samples begin from normal noise."""
    drawn = Probe(probe="noise mean", measured=mean, reference=spread, step=9, label="noise")
    start = starts * [Probe(probe="normal start", measured=1.0, reference=1.0)]
    assert ranks("noise_has_no_mean", [*steps(20), drawn, *start]) == expected


def test_times_of_others_are_named(judged) -> None:
    """By what the model calls them."""
    probe = Probe(probe="noise times", measured=-0.01, reference=512.0, label="t")
    (finding,) = judged("times_tell_the_noise", [probe])
    assert finding.at == "`t`, beside a * data + b * noise"
    assert finding.measured == "0.01 of correlation with the noise (b), over 512 rows"
