"""By what name layers are known that a model uses and does not register."""

import pytest
import torch
from torch import nn

from trainguard.events.parameter import Parameter
from trainguard.observe.loop.recorder import Recorder


class Heads(nn.Module):
    """A body, and heads of some kind in a plain dict or list."""

    def __init__(self, heads) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of what all heads make."""
        heads = self.heads.values() if isinstance(self.heads, dict) else self.heads
        return sum(head(self.body(x)) for head in heads)


def hidden(heads) -> set[str]:
    """Train with an optimizer that holds what is registered; return the names of the rest."""
    model = Heads(heads)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    parameters = [event for event in recorder.trace if isinstance(event, Parameter)]
    return {each.name for each in parameters if each.hidden}


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (lambda: [nn.Linear(4, 1)], "Heads.heads[0]"),
        (lambda: {"age": nn.Linear(4, 1)}, "Heads.heads['age']"),
        (lambda: {"age": nn.Sequential(nn.Tanh(), nn.Linear(4, 1))}, "Heads.heads['age'].1"),
    ],
    ids=["list", "dict", "parts"],
)
def test_layers_are_named_by_what_keeps_them(heads, name: str) -> None:
    """And by their place in what is kept."""
    assert hidden(heads()) == {f"{name}.weight", f"{name}.bias"}


def of_functions(keep, *, inside: bool = True) -> set[str]:
    """Train tensors that are kept in a tree, of which the optimizer holds the first; as above."""
    torch.manual_seed(0)
    first, last = torch.randn(4, 4, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    tree = keep(first, last)
    if not inside:
        del tree
    moved = torch.randn(8, 4, requires_grad=True)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD([first], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            (torch.tanh(moved @ first) @ last).square().mean().backward()
            optimizer.step()
    parameters = [event for event in recorder.trace if isinstance(event, Parameter)]
    return {each.name for each in parameters if each.hidden}


def test_tensors_beside_those_that_are_held() -> None:
    """They are named by where they are kept; an input that gets a gradient is none of them."""
    found = of_functions(lambda first, last: {"first": first, "blocks": [{"w": last}]})
    assert found == {"tree['blocks'][0]['w']"}
    assert of_functions(lambda first, last: [first, (last,)]) == {"tree[1][0]"}
    assert of_functions(lambda first, last: {"last": last}) == set()
    assert of_functions(lambda first, last: [first, last], inside=False) == set()
