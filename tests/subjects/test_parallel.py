"""What a declared parallel step refuses, and how it cuts its batch."""

from typing import Any

import pytest
from torch import nn

import trainguard as tg

X = tg.real("B 8", -1, 1)


def build() -> None:
    """Stand for a function that builds a module."""


def loss(output: Any, target: Any) -> None:
    """Stand for a loss."""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"x": X}, "needs either a loss or a step"),
        ({"x": X, "loss": loss, "step": loss}, "needs either a loss or a step"),
        ({"x": X, "loss": 3}, "which cannot be called"),
        ({"x": X, "loss": loss, "wrap": "dpp"}, "Did you mean 'ddp'"),
        ({"x": X, "loss": loss, "ranks": (1,)}, "has no several processes"),
        ({"x": X, "loss": loss, "ranks": (3,), "cut": 2}, "does not divide"),
        ({"x": X, "loss": loss, "ranks": (2, 0)}, "has no several processes"),
        ({"x": X, "loss": loss, "devices": "cuda:1"}, "'cuda:1'\\) is no type of device"),
        ({"x": 3, "loss": loss}, "is no domain"),
        ({"x": tg.real("8", -1, 1), "loss": loss}, "no input with the dimension 'B'"),
        ({"x": X, "loss": loss, "sizes": {"T": 3}}, "sizes has 'T'"),
        ({"x": X, "loss": loss, "sizes": {"B": 3}}, "cannot cut a batch of 3 for 2 processes"),
        ({"x": X, "loss": loss, "sizes": {"B": 2}, "uneven": True}, "cannot cut a batch of 2"),
        ({"x": X, "loss": loss, "sizes": {"B": (1, 8)}, "uneven": True}, "cut a batch of 1 for 2"),
        ({"x": X, "loss": loss, "sizes": {"B": (4, 3)}}, "is no size"),
    ],
)
def test_what_cannot_be_meant(options: Any, told: str) -> None:
    """Each is refused when it is declared, with the way out."""
    with pytest.raises(tg.DeclarationError, match=told):
        tg.Parallel(build, **options)


@pytest.mark.parametrize(("uneven", "parts"), [(False, (4, 4, 4)), (True, (5, 4, 3))])
def test_the_batch_is_cut(uneven: bool, parts: tuple[int, ...]) -> None:
    """Evenly, or with a row more for the first and one less for the last."""
    subject = tg.Parallel(build, loss=loss, ranks=(1, 2, 3), uneven=uneven, sizes={"B": 12}, x=X)
    assert subject.worlds == (2, 3)
    assert subject.rows(3, 12) == parts
    assert subject.rows(1, 12) == (12,)


def test_the_batch_may_stay_whole() -> None:
    """Under tensor parallelism each rank gets all of it, or each pair the same part."""
    assert tg.Parallel(build, loss=loss, cut=False, x=X).rows(2, 8) == (8,)
    assert tg.Parallel(build, loss=loss, cut=2, ranks=(1, 4), x=X).rows(4, 16) == (8, 8)


def test_sizes_that_are_drawn() -> None:
    """A range is one, and unequal parts are: of a batch that each process has a row of."""
    assert not tg.Parallel(build, loss=loss, x=X).is_drawn
    lengths = tg.Parallel(build, loss=loss, x=tg.real("B T", -1, 1), sizes={"T": (1, 9)})
    assert (lengths.is_drawn, lengths.spans) == (True, {"B": (8, 8), "T": (1, 9)})
    uneven = tg.Parallel(build, loss=loss, x=X, ranks=(1, 3), uneven=True)
    assert (uneven.is_drawn, uneven.spans) == (True, {"B": (3, 12)})


def test_a_module_is_no_way_to_build_one() -> None:
    """Each process needs one of its own."""
    with pytest.raises(tg.DeclarationError, match="Pass its class"):
        tg.Parallel(nn.Linear(8, 1), loss=loss, x=X)
