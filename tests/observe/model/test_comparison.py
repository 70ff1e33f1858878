"""What two calls of a model returned, held against each other and against rounding."""

from math import inf, nan

import pytest
import torch
from torch import Tensor, nn

import trainguard as tg
from fixtures.healthy.model import guard_masked_encoder
from trainguard.observe.model.cases import draw
from trainguard.observe.model.comparison import error, scatter
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.tools.isolation import isolate


@pytest.mark.parametrize(
    ("one", "exact", "off"),
    [
        ([inf, 1.0], [inf, 1.0], 0.0),
        ([-inf, 3.0], [-inf, 2.0], 0.5),
        ([inf, 1.0], [-inf, 1.0], inf),
        ([1.0, 1.0], [inf, 1.0], inf),
        ([nan, 1.0], [1.0, 1.0], inf),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 0.0], inf),
    ],
)
def test_errors_of_what_is_not_finite(one, exact, off) -> None:
    """Infinities that both have, as of a mask, are equal."""
    assert error(torch.tensor(one), torch.tensor(exact)) == off


class Chooses(nn.Module):
    """Goes on with the best two of many scores, which are equal where a word says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(4, 8, bias=False)
        self.values = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        """Return the values of the chosen ones."""
        rows = x * (torch.arange(len(x)) > 0)[:, None]
        return self.values[self.score(rows).topk(2, dim=-1).indices].sum(-1)


def scattered(model: tg.Model) -> float:
    """Return how far the outputs of a model move with noise in each of its modules."""
    network = ModelCase(model, draw(model, 1, 0)[0], 0)
    with isolate(), torch.no_grad():
        module, inputs = network.build().eval(), network.draw()
        return scatter(network, module, inputs, network.call(module, inputs))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_noise_of_the_last_digits() -> None:
    """It moves what is computed by little, and a choice between equals by much."""
    net = tg.Model(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
                   inputs={"input": tg.real("B 4", -1, 1)})  # fmt: skip
    assert 0 < scattered(net) < 1e-5
    assert scattered(tg.Model(Chooses, x=tg.real("B 4", -1, 1))) > 0.01
    assert scattered(guard_masked_encoder.model) < 1e-4  # its layers are given nested tensors
