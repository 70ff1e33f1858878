"""Maps of classes that are resized as pictures are, and become the targets of a loss."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.blended_classes import _Blend, _find_telling_row

Cut = Callable[[torch.Tensor], torch.Tensor]


def draw_map() -> torch.Tensor:
    """Draw a map (12, 12) of four classes, with borders all over it."""
    return torch.randint(4, (3, 3)).repeat_interleave(4, 0).repeat_interleave(4, 1)


def resize(classes: torch.Tensor, mode: str) -> torch.Tensor:
    """Return a map (18, 18), as a data set would make it."""
    return F.interpolate(classes[None, None].float(), size=(18, 18), mode=mode)[0, 0].long()


def looks(cut: Cut, mode: str = "bilinear", drop: Cut | None = None) -> list[tuple[float, float]]:
    """Learn ten batches of two maps, and return what was found of how many."""
    torch.manual_seed(0)
    model = nn.Conv2d(1, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(10):
            target = torch.stack([cut(resize(draw_map(), mode)) for _ in range(2)])
            target = drop(target) if drop is not None else target
            loss = F.cross_entropy(model(torch.randn(2, 1, *target.shape[1:])), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "blended"]
    line = resize.__code__.co_firstlineno + 2
    assert all(probe.source.endswith(f"test_blended_classes.py:{line}") for probe in found)
    return [(probe.measured, probe.reference) for probe in found]


def test_whole_maps() -> None:
    """Each target is one."""
    assert looks(lambda classes: classes) == [(20, 20)]


@pytest.mark.parametrize(
    "cut",
    [
        lambda classes: classes[2:15, 3:17],
        lambda classes: classes[5:, :13].flip(-1),
        lambda classes: classes[:13].flip(-2),
        lambda classes: classes.flip(-1),
    ],
    ids=["cut", "mirrored", "upside down", "whole"],
)
def test_parts_of_maps(cut: Cut) -> None:
    """At eight losses; a part may have no border in it."""
    ((found, looked),) = looks(cut)
    is_whole = cut(draw_map()).numel() == draw_map().numel()
    assert looked == 16 or is_whole  # one that looks the same when turned is known as a whole
    assert found >= 12


def test_what_is_not_blended() -> None:
    """The nearest class, and other maps than those that were resized."""
    assert looks(lambda classes: classes[2:15, 3:17], "nearest") == []
    assert looks(lambda classes: classes[2:15], drop=lambda maps: maps.clamp(max=1)) == []
    assert looks(lambda classes: classes[:4, :4], "nearest-exact") == []


def test_parts_without_a_border() -> None:
    """What is cut out of a map where it is as it should be says nothing."""
    torch.manual_seed(0)
    columns = torch.arange(12).div(4, rounding_mode="floor").repeat(12, 1)
    resized = resize(columns, "bilinear")
    nearest = resize(columns, "nearest")
    same = (resized == nearest).all(0).nonzero().flatten().tolist()
    assert len(same) < 18
    assert looks(lambda _: torch.stack([nearest[:, place] for place in same], 1)) == []


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ([[0, 1, 1, 2]] * 2, True),
        ([[1, 1]] * 2, False),  # it may be of anything
        ([[0, 1, 1, 2], [2, 1, 1, 0]], False),
        ([[3, 0, 1], [0, 1, 2]], False),
        ([[0, 0, 1, 1, 2, 2, 3]], False),  # it is wider
    ],
)
def test_a_part_is_found_by_all_that_it_has(part: list[list[int]], expected: bool) -> None:
    """Also what would be above the map is to be there."""
    rows = torch.tensor([[0, 0, 1, 1, 2, 2]] * 3)
    nearest = torch.tensor([[0, 0, 0, 2, 2, 2]] * 3)
    place = _find_telling_row(torch.tensor(part))
    known = place is not None
    assert (known and _Blend(rows, nearest, "").has_part(torch.tensor(part), place)) == expected
    assert not (known and _Blend(rows, rows, "").has_part(torch.tensor(part), place))
