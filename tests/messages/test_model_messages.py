"""What a user reads when a fresh model breaks an invariant: whole messages, as they are printed."""

import re

import pytest

import trainguard.observe.model.backward
import trainguard.observe.model.initial

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.model.observer
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import torch
from torch import nn
import trainguard as tg

"""
# One model for each invariant, wrong in the way that the invariant is about.
MODELS = {
    "outputs_are_finite": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3, eps=0, elementwise_affine=False)

    def forward(self, x):
        return self.norm(0 * self.layer(x))

model = tg.Model(Net, x=tg.real("B 4", -1, 1))
""",
    "initial_loss_is_expected": """
def build(bias):
    layer = nn.Linear(4, 3)
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, bias)
    return layer

model = tg.Model(
    build,
    input=tg.real("B 4", -1, 1),
    arguments={"bias": 3.0},
    loss=lambda output: output.square().mean(),
    initial_loss=1.0,
)
""",
    "initial_outputs_are_in_range": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = nn.Linear(4, 3)
        self.scales = nn.Linear(4, 3)
        for layer in (self.means, self.scales):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, 3)

    def forward(self, x):
        return {"means": self.means(x), "scales": self.scales(x)}

model = tg.Model(Net, x=tg.real("B 4", -1, 1), initial_range={"means": (-1, 1), "s*": (0, 2)})
""",
    "components_are_distinct": """
class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = nn.Linear(4, 5)
        nn.init.constant_(self.means.weight, 0.1)
        nn.init.zeros_(self.means.bias)

    def forward(self, x):
        return {"means": self.means(x)}

model = tg.Model(
    Mixture,
    x=tg.real("B 4", -1, 1),
    target=tg.real("B", -1, 1),
    loss=lambda output, target: (output["means"] - target[:, None]).square().mean(),
    components="means",
)
""",
    "every_parameter_receives_gradient": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
        self.decode = nn.Linear(3, 4)
        self.skip = nn.Linear(4, 4)

    def forward(self, x):
        return self.decode(self.encode(x).detach())

model = tg.Model(Net, x=tg.real("B 4", -1, 1))
""",
    "layer_gradients_are_balanced": """
def build(layers):
    stack = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    for layer in stack:
        layer.weight.data = 0.01 * torch.eye(4)
    return stack

model = tg.Model(build, input=tg.real("B 4", -1, 1), arguments={"layers": 6})
""",
    "unobservable": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 3)]

    def forward(self, x):
        return self.layers[0](x)

model = tg.Model(Net, x=tg.real("B 4", -1, 1))
""",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_invariant(name: str, pytester: pytest.Pytester, snapshot) -> None:
    """The message names the invariant, the place, both numbers, the call and the way on."""
    pytester.makepyfile(guard_model=HEAD + MODELS[name])
    select = "outputs_are_finite" if name == "unobservable" else name
    result = pytester.runpytest_inprocess("--trainguard", f"--trainguard-select=model.{select}")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text

    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]

    assert failures == snapshot
    for one in re.split(r"\n\n|\n(?=____)", failures):
        rows = [row for row in one.splitlines() if not row.startswith("____")]
        assert all(len(row) <= 100 and row.isascii() for row in rows)
        assert len([row for row in rows if row[:3] != "   "]) <= 10
