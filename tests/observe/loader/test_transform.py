"""What comes back from real transforms."""

import math

import numpy as np
import pytest
import torch

import trainguard as tg
from tests.observe.loader.probed import loader, rows
from trainguard.api.check import check
from trainguard.core.errors import SubjectError
from trainguard.observe.loader.transform import round_trips

UNIT = tg.real("B T", -1, 1)


def mu_law(bits: int):
    """Return an encoder and a decoder of so many bits."""
    mu = 2**bits - 1

    def encode(audio):
        """Return codes."""
        companded = torch.sign(audio) * torch.log1p(mu * audio.abs()) / math.log1p(mu)
        return ((companded + 1) / 2 * mu + 0.5).long()

    def decode(codes):
        """Return audio."""
        y = codes.float() / mu * 2 - 1
        return torch.sign(y) * ((1 + mu) ** y.abs() - 1) / mu

    return encode, decode


def linear(bits: int):
    """Return a rounding encoder and a decoder of so many signed bits, which clip at the top."""
    half = 2.0 ** (bits - 1)
    return (
        lambda x: (x.double() * half).round().clamp(-half, half - 1).to(torch.int32),
        lambda codes: codes.double() / half,
    )


def interleaved():
    """Return functions that make one sequence of the channels, and channels of it again."""
    return (
        lambda x: (x.transpose(1, 2).reshape(len(x), -1), x.shape[1]),
        lambda y, channels: y.reshape(len(y), -1, channels).transpose(1, 2),
    )


def rank(forth, back, values=UNIT, **declared) -> list[str]:
    """Judge a transform from its declaration, and return how sure the findings are."""
    subject = tg.Loader(
        loader(rows()), splits={"train": {}}, transform=forth, inverse=back, values=values,
        name="x", **declared,
    )  # fmt: skip
    try:
        verdicts = check(subject, select=["transform_round_trips"])
    except tg.Broken as broken:
        verdicts = broken.verdicts
    return [finding.rank.value for verdict in verdicts for finding in verdict.findings]


RIGHT = {
    "mu-law, 8 bits": (*mu_law(8), UNIT),
    "mu-law, 5 bits": (*mu_law(5), UNIT),
    "linear, 8 bits": (*linear(8), UNIT),
    "linear, 16 bits": (*linear(16), UNIT),
    "linear, 24 bits": (*linear(24), UNIT),
    "half precision": (lambda x: x.half(), lambda x: x.float(), UNIT),
    "bfloat16": (lambda x: x.bfloat16(), lambda x: x.float(), UNIT),
    "logarithm": (torch.log, torch.exp, tg.real("B T", 1e-3, 1e3)),
    "scanner units": (lambda x: (x - 40) / 400, lambda x: x * 400 + 40, tg.real("T", -1e3, 3e3)),
    "stereo": (*interleaved(), tg.real("B 2 T", -1, 1)),
    "mono or stereo": (*interleaved(), tg.real("B C T", -1, 1)),
    "bins": (lambda x: ((x + 1) * 127.5).round(), lambda x: x / 127.5 - 1,
             tg.bins("B T", -1, 1, 256)),
    "whole numbers": (lambda x: x + 7, lambda x: x - 7, tg.integer("B T", 0, 1_000_000)),
    "arrays": (np.tanh, np.arctanh, tg.real("T", -2, 2)),
    "only arrays": (lambda x: x.astype(np.float64).byteswap(), lambda x: x.byteswap(), UNIT),
    "even lengths": (lambda x: x.unflatten(-1, (-1, 2)), lambda x: x.flatten(-2), UNIT),
    "a fixed shape": (torch.fft.fft, lambda x: torch.fft.ifft(x).real, tg.real("16", -1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_transform_that_is_right_is_passed(name: str) -> None:
    """Steps that are even or not, clipping at the ends, rounding, layouts: none is a fault."""
    assert rank(*RIGHT[name]) == []


WRONG = {
    "another law": (mu_law(8)[0], lambda c: c.float() / 255 * 2 - 1, UNIT),
    "another number of levels": (linear(8)[0], lambda c: c / 120, UNIT),
    "wraps around": (lambda x: (x * 128).round().to(torch.int32).to(torch.int8),
                     lambda c: c / 128, UNIT),
    "without the offset": (lambda x: (x - 40) / 400, lambda x: x * 400, UNIT),
    "channels apart": (lambda x: x.transpose(1, 2).flatten(1),
                       lambda y: y.reshape(len(y), 2, -1), tg.real("B 2 T", -1, 1)),
    "a longer sequence": (lambda x: torch.nn.functional.pad(x, (0, 1)), lambda x: x, UNIT),
    "nan": (torch.log, torch.exp, UNIT),
    "clipped": (lambda x: x.clamp(-0.5, 0.5), lambda x: x, UNIT),
    "bins apart": (lambda x: ((x + 1) * 127.5).long(), lambda x: x / 127.5 - 1.004,
                   tg.bins("B T", -1, 1, 256)),
    "integers through half": (lambda x: x.half(), lambda x: x.long(),
                              tg.integer("B T", 0, 4096)),
    "constant": (torch.zeros_like, torch.zeros_like, UNIT),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_transform_that_is_wrong_is_found(name: str) -> None:
    """Each in one finding."""
    assert rank(*WRONG[name]) == ["broken"]


def test_codes_that_are_cut_off_are_a_note() -> None:
    """A whole step on one side of the value."""
    forth = lambda x: ((x + 1) * 127.5).to(torch.uint8)  # noqa: E731 one line, as it is written
    assert rank(forth, lambda c: c / 127.5 - 1) == ["note"]


def test_a_tolerance_is_kept_or_not() -> None:
    """Seven bits keep a promise of a hundredth, and six do not."""
    assert rank(*linear(7), tolerance=0.02) == []
    assert rank(*linear(6), tolerance=0.02) == ["broken"]


def test_a_transform_that_raises_is_a_fault_of_the_subject() -> None:
    """The sentence names what was raised."""

    def forth(values):
        """Refuse everything."""
        raise RuntimeError("expected a spectrogram")

    with pytest.raises(SubjectError, match="raised RuntimeError: expected a spectrogram"):
        list(round_trips(forth, forth, UNIT, 0))


def test_the_input_may_be_edited() -> None:
    """What is compared is a copy of what was put in."""
    assert rank(lambda x: x.mul_(2), lambda x: x.div_(2)) == []


def test_sixteen_bits_are_told_from_a_continuum() -> None:
    """There are more values than codes."""
    (levels,) = [e for e in round_trips(*linear(16), UNIT, 0) if e.quantity == "levels"]
    assert levels.measured == 65536
