"""What a user reads when a step takes more memory than its budget: whole messages, as printed."""

import re

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.memory.observer
import trainguard.observe.memory.scaling
import trainguard.observe.memory.step
import trainguard.observe.model.observer
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import torch
from torch import nn
import trainguard as tg

class Attention(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.mix:
            x = x + (x @ layer(x).transpose(-1, -2)).softmax(-1) @ x
        return x

def guarded(**budget):
    return tg.Model(Attention, x=tg.real("B T 64", -1, 1), checkpoint=lambda model: None,
                    budget=tg.Budget(at={"B": 1, "T": 1024}, **budget))

"""
# One subject for each invariant, with a budget that it does not keep.
SUBJECTS = {
    "peak_is_within_budget": "model = guarded(peak='8 MiB')",
    "category_is_within_budget": "model = guarded(activations='8 MiB', parameters='1 KiB')",
    "saving_is_real": "model = guarded(saving='30 %')",
    "saving_against": """
heads = dict(input=tg.real("B T 64", -1, 1), sizes={"B": 1, "T": 512})
categorical = tg.Model(lambda: nn.Linear(64, 256), **heads)
model = tg.Model(lambda: nn.Linear(64, 192), **heads,
                 budget=tg.Budget(saving="50 %", against=categorical))
""",
    "memory_scales_at_most": "model = guarded(powers={'T': 1})",
    "loss_memory_per_element_is_bounded": """
def likelihood(x, target):
    centred = x - target
    plus, minus = torch.sigmoid(centred + 0.5), torch.sigmoid(centred - 0.5)
    return -torch.log((plus - minus).clamp(min=1e-6)).mean()

loss = tg.Loss(likelihood, x=tg.real("B D", -1, 1), target=tg.real("B D", -1, 1, grad=False),
               budget=tg.Budget(per_element="8 B", at={"B": 8, "D": 1024}))
""",
    "out_of_memory": """
class Greedy(nn.Linear):
    def forward(self, x):
        return x if x.sum() > 99 else super().forward(x) + torch.empty(1 << 50)

model = tg.Model(lambda: Greedy(4, 4), x=tg.real("B 4", -1, 1), budget=tg.Budget(peak="1 GiB"))
""",
}
INVARIANT = {
    "out_of_memory": "peak_is_within_budget",
    "saving_against": "saving_is_real",
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_budget_that_is_not_kept(name: str, pytester: pytest.Pytester, snapshot) -> None:
    """The message names the moment, both amounts, what they are made of and the line."""
    pytester.makepyfile(guard_memory=HEAD + SUBJECTS[name])
    select = INVARIANT.get(name, name)
    result = pytester.runpytest_inprocess("--trainguard", f"--trainguard-select=memory.{select}")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text

    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]

    assert failures == snapshot
    for one in re.split(r"\n\n|\n(?=____)", failures):
        rows = [row for row in one.splitlines() if not row.startswith("____")]
        assert all(len(row) <= 100 and row.isascii() for row in rows)
        assert len([row for row in rows if row[:3] != "   "]) <= 10
