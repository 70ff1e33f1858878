"""Numbers that learn and go into a variable which the code never reads."""

# ruff: noqa: F841 this is what the tests are about

import linecache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder

MODULE = """
import torch
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(4, 16, 4):
    optimizer.zero_grad()
    scores = model(batch)
    sparse = scores.abs().mean()
    loss = scores.square().mean(){more}
    loss.backward()
    optimizer.step()
"""


def asked(train) -> WhatIf | None:
    """Record a training, and return the answer that says most."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train()
    events = [event for event in recorder.trace if isinstance(event, WhatIf)]
    answers = [e for e in events if e.question == "terms unread" and e.outcome == "answered"]
    return max(answers, key=lambda answer: answer.measured, default=None)


def ask(loss_of) -> WhatIf | None:
    """Record four steps with a loss, and return the answer that says most."""

    def train() -> None:
        """Make the steps."""
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in torch.randn(4, 16, 4):
            optimizer.zero_grad()
            loss_of(net(batch), batch).backward()
            optimizer.step()

    return asked(train)


def computed_by_hand(scores, batch):
    """Leave a divergence out of the sum."""
    divergence = -0.5 * (1 + scores - scores.exp()).mean()
    return (scores - batch[:, :3]).square().mean()


def computed_by_torch(scores, batch):
    """Leave out what a loss function of torch returns, and what a module does."""
    smooth = F.smooth_l1_loss(scores, batch[:, :3])
    other = nn.HuberLoss()(scores, batch[:, :3])
    return F.mse_loss(scores, batch[:, :3])


def size_of(scores):
    """Return a penalty."""
    return scores.abs().mean()


def computed_by_a_helper(scores, batch):
    """Leave out what a function of the user's returns."""
    size = size_of(scores)
    return F.mse_loss(scores, batch[:, :3])


@pytest.mark.parametrize(
    ("loss_of", "name", "count"),
    [
        (computed_by_hand, "divergence", 1),
        (computed_by_torch, "smooth", 2),
        (computed_by_a_helper, "size", 1),
    ],
    ids=["by hand", "by torch", "by a helper"],
)
def test_terms_that_nothing_reads(loss_of, name: str, count: int) -> None:
    """The variable and its line are told."""
    answer = ask(loss_of)
    assert answer is not None
    assert (answer.measured, answer.enters) == (count, name)
    file, line = answer.smallest.rsplit(":", 1)
    assert linecache.getline(file, int(line)).strip().startswith(f"{name} = ")


KEPT = []


def read_now_and_then(scores, batch):
    """Print a number in a branch that is never taken, and keep others."""
    size = scores.abs().mean()
    kept = scores.mean()
    KEPT.append(kept)
    if len(KEPT) > 10**6:
        print(size)
    later = scores.square().sum()
    KEPT[0] = lambda: later
    return F.mse_loss(scores, batch[:, :3])


def read_by_name(scores, batch):
    """Log all variables of a function."""
    size = scores.abs().mean()
    KEPT.append(list(locals()))
    return F.mse_loss(scores, batch[:, :3])


def without_a_graph(scores, batch):
    """Compute what learns nothing: an accuracy, and a number that is detached."""
    right = (scores.argmax(1) == batch[:, :3].argmax(1)).float().mean()
    size = scores.detach().abs().mean()
    _ = scores.mean()
    return F.mse_loss(scores, batch[:, :3])


@pytest.mark.parametrize("loss_of", [read_now_and_then, read_by_name, without_a_graph])
def test_numbers_that_may_be_read(loss_of) -> None:
    """Elsewhere, in a function, by name, or under a name that says that nobody will."""
    answer = ask(loss_of)
    assert answer is not None
    assert answer.measured == 0


@pytest.mark.parametrize(("more", "unread"), [("", 1), (" + sparse", 0)])
def test_variables_of_a_script(tmp_path, more: str, unread: int) -> None:
    """Those of a module are read in its functions too; those of a cell may be read in the next."""
    code = MODULE.format(more=more)
    (tmp_path / "train.py").write_text(code)
    script = compile(code, tmp_path / "train.py", "exec")
    answer = asked(lambda: exec(script, {"__name__": "__main__"}))
    assert answer is not None
    assert answer.measured == unread
    cell = compile(code, "/nowhere/cell.py", "exec")
    answer = asked(lambda: exec(cell, {"__name__": "__main__"}))
    assert answer is None or answer.measured == 0
