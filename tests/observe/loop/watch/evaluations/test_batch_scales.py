"""Evaluations whose batches are scaled each by its own numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Scale = Callable[[torch.Tensor], torch.Tensor]


def learn(
    rows: torch.Tensor, scale: Scale, parts: int | list[int] = 0, batch: int = 40
) -> tuple[list[Probe], bool]:
    """Evaluate rows, by a loader or in parts; return what was found, and if there was anything."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(rows[0].numel(), 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(TensorDataset(rows), batch)
    with Recorder("x") as recorder:
        for _ in range(2):
            model.train()
            model(rows[:20]).square().mean().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                batches = rows.split(parts) if parts else (part for (part,) in loader)
                for part in batches:
                    model(scale(part))
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "batch scale"]
    return found, "batch scale" in recorder.trace.conditions["looked"]


def standardise(*axes: int, unbiased: bool = True) -> Scale:
    """Return what standardises a batch along axes."""

    def scale(part: torch.Tensor) -> torch.Tensor:
        """Return it standardised."""
        middle = part.mean(axes, keepdim=True)
        return (part - middle) / (part.var(axes, unbiased=unbiased, keepdim=True) + 1e-5).sqrt()

    return scale


def hours(count: int) -> torch.Tensor:
    """Return hours of a week as points on a circle."""
    angles = torch.arange(count) % 168 / 168 * 2 * torch.pi
    return torch.stack([angles.sin(), angles.cos()], 1)


def quantise(pictures: torch.Tensor) -> torch.Tensor:
    """Return pictures of 256 shades, as files have them."""
    return (pictures * 255).round() / 255


def fill_range(part: torch.Tensor) -> torch.Tensor:
    """Return a batch whose columns go from 0 to 1."""
    return (part - part.amin(0)) / (part.amax(0) - part.amin(0))


TABLE = 3 + 2 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
FLAGS = torch.cat([TABLE, (TABLE[:, :2] > 3).float()], 1)
WINDOWS = 3 + 2 * torch.randn(200, 8, 3, generator=torch.Generator().manual_seed(0))
PICTURES = torch.rand(200, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("rows", "scale", "by"),
    [
        (TABLE, standardise(0), "column"),
        (TABLE, standardise(0, unbiased=False), "column"),
        (TABLE, standardise(0, 1), "number"),
        (FLAGS, fill_range, "range of each column"),
        (FLAGS, lambda part: 2 * fill_range(part) - 1, "range of each column"),
        (FLAGS, lambda p: torch.cat([standardise(0)(p[:, :5]), p[:, 5:]], 1), "column"),
        (WINDOWS, standardise(0, 1), "feature"),
        (WINDOWS, standardise(0), "column"),
        (PICTURES, standardise(0, 2, 3), "channel"),
    ],
)
def test_each_batch_by_itself(rows: torch.Tensor, scale: Scale, by: str) -> None:
    """Along whatever axes; a table may have columns that are left as they are."""
    ((probe,), looked) = learn(rows, scale)
    assert (probe.label, probe.measured, probe.reference, probe.step) == (
        f"Sequential {by}",
        8,
        40,
        1,
    )
    assert looked


def test_parts_of_a_table() -> None:
    """It has a smaller part at its end."""
    ((probe,), _) = learn(TABLE, standardise(0), 60)
    assert (probe.measured, probe.reference, probe.step) == (8, 60, 0)


@pytest.mark.parametrize("parts", [[60, 50, 60, 30], 200, 50], ids=["sizes", "one", "equal"])
def test_groups_of_their_own_are_fine(parts: int | list[int]) -> None:
    """A subject, a task or a whole evaluation may be scaled by itself."""
    assert learn(TABLE, standardise(0), parts)[0] == []


@pytest.mark.parametrize(
    ("rows", "scale"),
    [
        (TABLE, lambda part: (part - TABLE.mean(0)) / TABLE.std(0)),
        (TABLE, standardise(1)),
        (WINDOWS, standardise(1, unbiased=False)),
        (PICTURES, standardise(2, 3, unbiased=False)),
        (PICTURES, standardise(1, 2, 3, unbiased=False)),
        (torch.rand(200, 4).round(decimals=1), lambda part: part),
        (torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(100, 3), lambda part: part),
        (standardise(0)(torch.randn(40, 6)).repeat(5, 1), lambda part: part),
        (quantise(torch.rand(200, 3, 12, 12)), lambda part: part),
    ],
    ids=[
        *("one scale", "rows", "windows", "channels", "pictures", "shares", "signs", "a grid"),
        "shades",
    ],
)
def test_one_scale_is_fine(rows: torch.Tensor, scale: Scale) -> None:
    """That of a row is its own; a design is balanced, and a grid the same each time."""
    assert learn(rows, scale)[0] == []


@pytest.mark.parametrize("others", [0, 1, 2, 8])
def test_hours_are_points_on_a_circle(others: int) -> None:
    """They reach their ends by themselves, whatever stands beside them."""
    rows = torch.cat([hours(2048), torch.randn(2048, others)], 1)
    assert learn(rows, lambda part: part, batch=256)[0] == []


@pytest.mark.parametrize(("others", "told"), [(2, True), (3, False)])
def test_most_columns_are_scaled(others: int, told: bool) -> None:
    """What scales a batch leaves few columns as they are."""

    def scale(part: torch.Tensor) -> torch.Tensor:
        """Scale two columns."""
        return torch.cat([fill_range(part[:, :2]), part[:, 2 : 2 + others]], 1)

    rows = 3 + 2 * torch.randn(200, 5)
    assert bool(learn(rows[:, : 2 + others], scale)[0]) == told
    flags = torch.cat([rows[:, : 2 + others], (rows > 3).float()], 1)  # which nobody scales

    def scale_some(part: torch.Tensor) -> torch.Tensor:
        """Scale two columns, and leave flags as they are."""
        return torch.cat([scale(part[:, : 2 + others]), part[:, 2 + others :]], 1)

    assert bool(learn(flags, scale_some)[0]) == told
