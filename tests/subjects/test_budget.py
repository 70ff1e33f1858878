"""Budgets, and what they may say of a subject: refused in a sentence where they cannot be meant."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import trainguard as tg
from trainguard.core.errors import DeclarationError
from trainguard.subjects.budget import CATEGORIES


class Net(nn.Module):
    """A model whose width and depth are arguments."""

    def __init__(self, width: int = 8, kind: str = "relu") -> None:
        super().__init__()
        self.layer = nn.Linear(8, width)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the one layer."""
        return self.layer(x)


def model(budget: Any, **options: Any) -> tg.Model:
    """Declare the model with a budget."""
    return tg.Model(Net, x=tg.real("B T 8", -1, 1), name="net", budget=budget, **options)


def loss(budget: Any) -> tg.Loss:
    """Declare a loss with a budget."""
    return tg.Loss(lambda x: x.square().mean(), x=tg.real("B D", -1, 1), budget=budget, name="l")


def loop(budget: Any) -> tg.Loop:
    """Declare a loop with a budget."""
    return tg.Loop(lambda steps=3: None, budget=budget, name="train")


def test_amounts_are_kept_in_bytes() -> None:
    """Whatever they were written as, in the header of a trace too."""
    budget = tg.Budget(peak="1 GiB", activations=12, growth_per_step="0 B", saving="30 %")
    assert (budget.peak, budget.activations, budget.growth_per_step) == (1 << 30, 12, 0)
    assert budget.categories == {"activations": 12}
    assert budget.promise_names == {"peak", "category", "saving"}
    assert budget.promises["budget:peak"] == 1 << 30
    assert "budget:sized" not in budget.promises


@given(st.fixed_dictionaries({}, optional={n: st.integers(1, 2**50) for n in CATEGORIES}))
def test_limits_of_categories(limits: dict[str, int]) -> None:
    """Those that are given are promised, and no other."""
    budget = tg.Budget(**limits)
    assert budget.categories == limits
    assert ("category" in budget.promise_names) == bool(limits)
    told = {name: value for name, value in budget.promises.items() if name != "budget:device"}
    assert told == {f"budget:{name}": limit for name, limit in limits.items()}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"peak": "24 gigs"}, "tg.Budget: peak='24 gigs' has no unit of memory."),
        ({"peak": 0}, "tg.Budget: peak=0 cannot be kept."),
        ({"growth_per_step": -1}, "tg.Budget: growth_per_step=-1 cannot be kept."),
        ({"activation": 1}, "tg.Budget has no category or option 'activation'. Did you mean 'ac"),
        ({"saving": 30}, "tg.Budget: saving=30 is no share."),
        ({"headroom": "all"}, "tg.Budget: headroom='all' is no share."),
        ({"device": "cudo"}, "tg.Budget(device='cudo') cannot be predicted. Did you mean 'cuda'?"),
        ({"at": 3}, "tg.Budget(at=3) is no mapping."),
        ({"using": "adam"}, "tg.Budget(using='adam') cannot be called."),
        ({"powers": {"T": -1}}, "tg.Budget(powers={'T': -1}) is no power."),
        ({"powers": {"T": "n log n"}}, "tg.Budget(powers={'T': 'n log n'}) is no power."),
        ({"against": 3}, "tg.Budget(against=...) promises no saving."),
    ],
)
def test_a_budget_that_cannot_be_meant(options: dict[str, Any], told: str) -> None:
    """It is refused when it is made."""
    with pytest.raises(DeclarationError) as caught:
        tg.Budget(**options)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("declare", "budget", "told"),
    [
        (model, "3 GiB", "tg.Model(budget='3 GiB') is no budget. Write budget=tg.Budget(peak="),
        (model, {"at": {"L": 3}}, "tg.Model(budget=tg.Budget(at={'L': ...})): net has neither a"),
        (model, {"at": {"widht": 3}}, "tg.Model(budget=tg.Budget(at={'widht': ...})): net has nei"),
        (model, {"powers": {"L": 1}}, "tg.Model(budget=tg.Budget(powers={'L': ...})): net has"),
        (model, {"at": {"T": "long"}}, "tg.Budget(at={'T': 'long'}) is no size."),
        (model, {"at": {"T": 0}}, "tg.Budget(at={'T': 0}) is no size."),
        (model, {"at": {"kind": "x"}, "powers": {"kind": 1}},
         "tg.Budget(powers={'kind': ...}): the argument kind='x' is no size"),
        (model, {"saving": 0.3}, "tg.Model(budget=tg.Budget(saving=...)) does not say what is "),
        (model, {"saving": 0.3, "against": 3}, "tg.Budget(against=3) is no other tg.Model or"),
        (model, {"per_element": 3}, "tg.Model(budget=tg.Budget(per_element=...)): only a loss"),
        (loss, {"at": {"L": 3}}, "tg.Loss(budget=tg.Budget(at={'L': ...})): l has neither a"),
        (loss, {"using": torch.optim.SGD}, "tg.Loss(budget=tg.Budget(using=...)) says nothing"),
        (loop, {"at": {"step": 3}}, "tg.Loop(budget=tg.Budget(at={'step': ...})): train has neith"),
        (loop, {"powers": {"steps": 1}}, "tg.Loop(budget=tg.Budget(powers=...)) says nothing "),
    ],
)  # fmt: skip
def test_a_budget_that_a_subject_cannot_be_held_to(declare: Any, budget: Any, told: str) -> None:
    """It is refused when the subject is declared."""
    with pytest.raises(DeclarationError) as caught:
        declare(tg.Budget(**budget) if isinstance(budget, dict) else budget)
    assert str(caught.value).startswith(told)


def test_the_nearest_name_is_told() -> None:
    """Of dimensions and of arguments."""
    with pytest.raises(DeclarationError, match="Did you mean 'width'?"):
        model(tg.Budget(at={"widht": 3}))
    with pytest.raises(DeclarationError, match="Did you mean 'steps'?"):
        loop(tg.Budget(at={"step": 3}))


def test_what_a_budget_may_say() -> None:
    """Dimensions, arguments of the factory, another subject to save against."""
    first = model(tg.Budget(at={"T": 64, "width": 16, "kind": "x"}, powers={"B": 1, "width": 2}))
    assert first.families == ("model", "memory")
    second = model(tg.Budget(saving="30 %", against=first))
    assert second.promises["budget:saving"] == pytest.approx(0.3)
    assert model(tg.Budget(saving=0.5), checkpoint=print).promise_names >= {"saving", "checkpoint"}
    loop(tg.Budget(peak=1, at={"steps": 4}))
    assert first.promises["budget:sized"] is True
    assert first.promises["power:width"] == 2.0
