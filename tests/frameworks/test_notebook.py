"""A training in a real Jupyter kernel is recorded unharmed; lines are told by their cell."""

from typing import Any

import pytest

MODEL = """
import torch, trainguard as tg
from torch import nn
import torch.nn.functional as F

def train(steps, empty=True):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :3] * 0.5
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        chosen = torch.randperm(256)[:32]
        loss = F.mse_loss(net(x[chosen]), y[chosen])
        if empty:
            opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item(), float(net[0].weight.detach().double().sum())
"""
DECLARED = """
def root(x):
    return x.square().sum().sqrt()

tg.check(tg.Loss(root, x=tg.real("B T", -1, 1)), profile="quick")
"""
CELLS = (
    MODEL,
    "train(40)",
    "with tg.record() as seen:\n    numbers = train(40)\nnumbers",
    "seen",
    "with tg.record() as kept:\n    train(40, empty=False)",
    "kept",
    "kept.check()",
    DECLARED,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of
def test_a_training_in_a_kernel() -> None:
    """Numbers are those of the plain run; the reports name cells, and are shown as HTML."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=240, allow_errors=True).execute()
    plain, recorded, seen, kept, raised, told = (_output(cells[n]) for n in (1, 2, 3, 5, 6, 7))
    assert plain["data"]["text/plain"] == recorded["data"]["text/plain"]
    assert "tg.record(&#x27;cell 3&#x27;), 40 steps" in seen["data"]["text/html"]
    assert "broken" not in seen["data"]["text/html"]
    assert "broken: gradients_start_empty" in kept["data"]["text/html"]
    assert "cell 1, line 17" in kept["data"]["text/html"]  # opt.step()
    assert raised["ename"] == told["ename"] == "Broken"
    assert "cell 8, line 4" in told["evalue"]


def _output(cell: Any) -> Any:
    """Return the one output of a cell."""
    (output,) = cell.outputs
    return output
