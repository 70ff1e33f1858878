"""How a picture was moved against another one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from trainguard.observe.tools.displacement import Moves, _place_of

SHIFTS = st.integers(-6, 6)


def draw_picture(size=(40, 40), seed=0):
    """Draw a picture of something, the same for a seed."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def crop(picture, down, right, size=24):
    """Return a part of a picture, so many places from its middle."""
    top, left = ((full - size) // 2 for full in picture.shape)
    return picture[top + down : top + down + size, left + right : left + right + size]


@settings(max_examples=30, deadline=None)
@given(SHIFTS, SHIFTS, st.integers(0, 3), st.booleans(), st.floats(0.5, 2), st.floats(-1, 1))
def test_a_move_is_found_in_whatever_light(down, right, quarters, flips, scale, offset) -> None:
    """The place that is found is where the picture was taken from, and no other fits as well."""
    picture = draw_picture()
    second = crop(picture, down, right).rot90(quarters)
    second = second.flip(-1) if flips else second
    moves = Moves(crop(picture, 0, 0), second * scale + offset)
    assert moves.best == pytest.approx(1.0)
    turn, *place = _place_of(moves.table).tolist()
    assert place == [down, right]
    assert (turn >= 4) == (flips)
    assert moves.is_known == ((down, right, quarters, flips) != (0, 0, 0, False))
    assert not Moves(crop(picture, 0, 0), second).parts_from(moves)


def test_a_target_that_goes_elsewhere_parts_from_its_picture() -> None:
    """That is another shift, another side, or another quarter."""
    picture = draw_picture()
    image = Moves(crop(picture, 0, 0), crop(picture, 5, 0))
    for other in (crop(picture, -4, 3), crop(picture, 5, 0).flip(-1), crop(picture, 0, 0).rot90()):
        target = Moves(crop(picture, 0, 0), other)
        assert target.is_known
        assert target.parts_from(image)


def test_a_target_that_goes_on_by_itself_does_not_part() -> None:
    """A thing that moves is elsewhere in the next picture, but not by more than half its way."""
    picture = draw_picture()
    image = Moves(crop(picture, 0, 0), crop(picture, 6, 0))
    later = Moves(crop(picture, 0, 0), crop(picture, 6, 2))
    assert later.best > 0.99
    assert not later.parts_from(image)


def test_a_shift_of_half_a_place_is_none() -> None:
    """What is interpolated fits one place further as well."""
    smooth = functional.avg_pool2d(draw_picture()[None, None], 5, 1, 2)[0, 0]
    half = (crop(smooth, 4, 0) + crop(smooth, 5, 0)) / 2
    image = Moves(crop(smooth, 0, 0), half)
    assert not Moves(crop(smooth, 0, 0), crop(smooth, 5, 0)).parts_from(image)
    assert not Moves(crop(smooth, 0, 0), crop(smooth, 4, 0)).parts_from(image)


def test_an_interpolated_shift_is_rounded() -> None:
    """A target that was rounded to the other side is where its picture is."""
    picture = draw_picture()
    between = 0.7 * crop(picture, 1, 0) + 0.3 * crop(picture, 2, 0)
    image = Moves(crop(picture, 0, 0), between)
    assert image.is_known
    assert not Moves(crop(picture, 0, 0), crop(picture, 2, 0)).parts_from(image)


def test_where_little_varies_there_is_no_correlation() -> None:
    """A dot in a corner is not in most parts of its picture."""
    dot = torch.zeros(24, 24)
    dot[0, 0] = 1.0
    moves = Moves(dot, dot)
    assert moves.best == pytest.approx(1.0)
    assert float(moves.table[0, 0, 0]) == -1.0


def test_pictures_that_have_nothing_in_common_were_not_moved() -> None:
    """Nor were empty ones, those that stayed, and those of one value."""
    picture = draw_picture((24, 24))
    assert not Moves(picture, draw_picture((24, 24), seed=1)).is_known
    assert not Moves(picture, picture + 0.1).is_known
    assert not Moves(torch.zeros(24, 24), torch.ones(24, 24)).is_known


def test_large_and_oblong_pictures_are_compared_alike() -> None:
    """Large ones are averaged down; oblong ones turned by halves alone."""
    wide = draw_picture((30, 50)).repeat_interleave(64, 0).repeat_interleave(64, 1)
    moves = Moves(wide[:800, :1600], wide[80:880, 160:1760])
    assert max(moves.table.shape) < 96
    assert moves.is_known
    assert len(moves.table) == 4
    assert Moves(wide[:800, :1600], wide[:800, :1600].flip(0, 1)).best > 0.99
