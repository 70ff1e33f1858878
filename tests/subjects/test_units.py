"""Amounts of memory in words, and shares."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.core.errors import DeclarationError
from trainguard.subjects.units import format_bytes, parse_bytes, share

SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("1.5 GiB", 3 << 29),
        ("300MB", 300_000_000),
        (" 2  kib ", 2048),
        ("512", 512),
        ("+7 B", 7),
        (4096, 4096),
    ],
)
def test_an_amount_in_words(words: str | int, size: int) -> None:
    """Binary and decimal units, in any case and with any blanks; a bare number is bytes."""
    assert parse_bytes("peak", words) == size


@given(st.integers(1, 10**6), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " "]))
def test_every_unit_counts_what_it_says(number: int, unit: str, blank: str) -> None:
    """A whole number of units is exact."""
    assert parse_bytes("peak", f"{number}{blank}{unit}") == number * SIZES[unit]


@given(st.integers(1, 2**60))
def test_what_is_shown_reads_back(size: int) -> None:
    """To the two decimals that are shown."""
    assert parse_bytes("peak", format_bytes(size).replace(",", "")) == pytest.approx(
        size, rel=0.005
    )


@given(st.integers(-(2**60), 2**60))
def test_what_is_shown_is_short(size: int) -> None:
    """At most four digits before the point, until there is no larger unit."""
    number, unit = format_bytes(size).split()
    assert unit in ("B", "KiB", "MiB", "GiB", "TiB")
    assert unit == "TiB" or abs(float(number.replace(",", ""))) <= 1024


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("24 gigs", "peak='24 gigs' has no unit of memory. Did you mean 'GiB'?"),
        ("3 mb/s", "peak='3 mb/s' is no amount of memory. Write '1.5 GiB'."),
        ("5 x", "peak='5 x' has no unit of memory. Known: "),
        ("", "peak='' is no amount of memory."),
        ("GiB", "peak='GiB' is no amount of memory."),
        ("1e9", "peak='1e9' is no amount of memory."),
        ("nan B", "peak='nan B' is no amount of memory."),
        (1.5, "peak=1.5 is no amount of memory."),
        (True, "peak=True is no amount of memory."),
        (None, "peak=None is no amount of memory."),
        (0, "peak=0 cannot be kept. Give an amount of at least 1 B."),
        ("0 GiB", "peak='0 GiB' cannot be kept."),
        ("-3 GiB", "peak='-3 GiB' cannot be kept."),
        (-1, "peak=-1 cannot be kept."),
    ],
)
def test_what_is_no_amount(value: object, told: str) -> None:
    """One sentence with the value, one with the way out."""
    with pytest.raises(DeclarationError) as caught:
        parse_bytes("peak", value)
    assert str(caught.value).startswith(told)


@given(st.text("0123456789. +-%KkMmGgiBbTt", max_size=12) | st.text(max_size=9))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    """Nothing else is raised, and nothing below the least is returned."""
    with suppress(DeclarationError):
        assert parse_bytes("peak", text) >= 1


@pytest.mark.parametrize(("value", "number"), [("30 %", 0.3), ("2.5%", 0.025), (0.3, 0.3)])
def test_a_share(value: str | float, number: float) -> None:
    """Per cent in words, or a number between zero and one."""
    assert share("saving", value) == pytest.approx(number)


@pytest.mark.parametrize("value", ["30", "130 %", "0 %", 1, 0, -0.1, 30, True, None, "a third"])
def test_what_is_no_share(value: object) -> None:
    """Thirty is not thirty per cent, and all or nothing is no share."""
    with pytest.raises(DeclarationError, match="is no share. Write '30 %' or 0.3"):
        share("saving", value)
