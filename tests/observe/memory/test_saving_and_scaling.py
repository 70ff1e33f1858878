"""The probes of savings, powers and elements on real models."""

from typing import Any

import pytest
import torch
from torch import nn

import trainguard as tg
from tests.observe.memory.stacks import Stack, judged, stack
from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.observe.memory.observer import observe


def test_a_saving_by_checkpointing() -> None:
    """It is real at the sizes of training, and too small to be seen where all is parameters."""
    budget = tg.Budget(saving="90 %", at={"T": 256, "layers": 3})
    seen = judged(stack(budget, written_out=True), "saving_is_real")
    assert seen.outcome == "broken"
    assert 30 < float(seen.findings[0].measured.split()[0]) < 60
    small = judged(stack(tg.Budget(saving="60 %")), "saving_is_real")
    assert (small.outcome, len(small.notes)) == ("passed", 1)


def test_a_saving_by_a_switch_that_reaches_nothing() -> None:
    """The very same bytes are no saving."""
    model = tg.Model(
        Stack, x=tg.real("B T 8", -1, 1), checkpoint=lambda model: None, name="stack",
        budget=tg.Budget(saving="10 %", at={"T": 256}),
    )  # fmt: skip
    seen = judged(model, "saving_is_real")
    assert seen.outcome == "broken"
    assert "(nothing changed: it may reach" in seen.findings[0].why


def head(name: str, outputs: int, budget: tg.Budget) -> tg.Model:
    """Declare a head of a model with so many outputs at each step."""
    return tg.Model(
        lambda outputs: nn.Linear(8, outputs), arguments={"outputs": outputs}, budget=budget,
        input=tg.real("B T 8", -1, 1), sizes={"T": (2, outputs % 7 + 2)}, name=name,
    )  # fmt: skip


def test_a_saving_against_another_subject() -> None:
    """Both are compared at the sizes of the one that promises, whatever the other declares."""
    categorical = head("categorical", 4096, tg.Budget(at={"B": 2}))
    budget = tg.Budget(saving="99.9 %", against=categorical, at={"T": 512})
    seen = judged(head("mixture", 18, budget), "saving_is_real")
    assert float(seen.findings[0].measured.split()[0]) > 90
    assert seen.findings[0].summary.endswith("as much less memory than `categorical` as promised")


@pytest.mark.parametrize(
    ("arguments", "powers", "outcome"),
    [
        ({}, {"T": 1}, "passed"),
        ({"written_out": True}, {"T": 1}, "broken"),
    ],
)
def test_powers_of_sizes(arguments: dict[str, Any], powers: dict[str, int], outcome: str) -> None:
    """Fused attention is linear in the length, written out it grows with the square."""
    subject = stack(tg.Budget(powers=powers, at={"T": 512, "B": 1}), **arguments)
    seen = judged(subject, "memory_scales_at_most")
    assert seen.outcome == outcome
    for found in seen.findings:
        assert ", 512" in found.at
        assert 1.2 < float(found.measured.split()[1].rstrip(":")) < 2.1
        assert "of `Stack.layers." in found.why


def test_powers_where_the_model_is_short() -> None:
    """Sizes are halved where larger ones do not work; with too few of them it is a fault."""
    subject = stack(tg.Budget(powers={"T": 1}, at={"T": 48}), longest=48)
    seen = judged(subject, "memory_scales_at_most")
    assert seen.outcome == "passed"
    with pytest.raises(SubjectError, match="at 2 sizes of T only: at T=52, it raised ValueError"):
        judged(
            stack(tg.Budget(powers={"T": 1}, at={"T": 13}), longest=26),
            "memory_scales_at_most",
        )


def written_out(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a likelihood that keeps intermediates: each exponential is one."""
    return sum((x * k).exp().sum() for k in range(1, 5)) + (x - target).square().sum()


@pytest.mark.parametrize(("limit", "outcome"), [("33 B", "passed"), ("28 B", "broken")])
def test_memory_of_a_loss_by_element(limit: str, outcome: str) -> None:
    """Eight intermediates of 4 bytes are held at the peak, and the scalars beside them."""
    loss = tg.Loss(
        written_out, x=tg.real("B D", -1, 1), target=tg.real("B D", -1, 1, grad=False), name="nll",
        budget=tg.Budget(per_element=limit, at={"B": 8, "D": 4096}),
    )  # fmt: skip
    seen = judged(loss, "loss_memory_per_element_is_bounded")
    assert seen.outcome == outcome, [found.measured for found in seen.findings]
    for found in seen.findings:
        assert "for each of 32,768 elements of `x`" in found.measured


def test_blocks_of_an_allocator_are_no_memory_of_an_element() -> None:
    """Where sizes are small, every number would be a whole block."""
    square = tg.Loss(
        lambda x: x.square().sum(), x=tg.real("B", -1, 1), sizes={"B": 4}, name="square",
        budget=tg.Budget(per_element="1 B"),
    )  # fmt: skip
    (seen,) = observe(square, "cpu", "float32", Settings()).trace("element")
    assert seen.of == 4
    assert 16 <= seen.count < 200
