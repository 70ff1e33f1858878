"""Rows of a set that drop_last keeps from all its evaluations."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def probes(*passes: dict[str, bool], loss: bool = False, learns: bool = False) -> list[Probe]:
    """Evaluate with loaders of 16 of 40 rows, after a step each, and return what is told of it."""
    data = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for options in passes:
            for given, *_ in DataLoader(data, 16) if learns else [torch.randn(1, 4, 6)]:
                optimizer.zero_grad()
                model(given).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                for rows, kinds in DataLoader(data, 16, **options):
                    scores = model(rows)
                    if loss:
                        nn.functional.cross_entropy(scores, kinds)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unjudged"]


DROPS = {"drop_last": True}


@pytest.mark.parametrize("loss", [False, True])
def test_the_rest_of_a_set_in_order_is_told(loss: bool) -> None:
    """It is told how many rows no pass gets to, and whether a loss is made of the others."""
    (probe,) = probes(DROPS, DROPS, loss=loss)
    assert (probe.measured, probe.reference, probe.step) == (8.0, 40.0, 2)
    assert probe.label == ("judges" if loss else "")
    assert "test_unjudged_rows.py:" in probe.source


def test_other_orders_reach_other_rows() -> None:
    """Of a fifth that is left out, a twenty-fifth is after two passes in another order each."""
    shuffled = {"shuffle": True, "drop_last": True}
    assert [p.measured for p in probes(shuffled, shuffled)] == [2.0]


@pytest.mark.parametrize(
    ("passes", "learns"),
    [([{}], False), ([DROPS, {}], False), ([DROPS], True)],
    ids=["nothing is dropped", "a whole pass", "trained on"],
)
def test_what_is_reached_is_not_told(passes: list[dict[str, bool]], learns: bool) -> None:
    """Nothing is told of sets that are judged as a whole, or learned from."""
    assert not probes(*passes, learns=learns)
