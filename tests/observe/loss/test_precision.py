"""The probe that compares a low-precision gradient with the exact one."""

import pytest
import torch
from torch.nn import functional

import trainguard as tg
from trainguard.observe.loss.probes import devices, precision
from trainguard.observe.loss.search import Key

LOW = (torch.bfloat16, torch.float16)
ALLOWED = {torch.bfloat16: 0.125, torch.float16: 0.0156}
PRECISION = Key("precision")
XY = {"x": tg.real("B D", -2, 2), "y": tg.real("B D", -2, 2, grad=False)}


def worst(made, measured, function, dtype: torch.dtype, **inputs) -> float:
    """Return the largest relative error of a gradient."""
    evaluator = made(function, {"D": 4}, dtype=dtype, **(inputs or XY))
    return float(measured(precision, evaluator, 256)[PRECISION].measured.max())


GOOD = {
    "squared error": lambda x, y: (x - y).square().mean(),  # torch 2.4 has no mse_loss of 16 bits
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "in float32 inside": lambda x, y: (x.float().exp() - y.float().exp()).square().sum(),
    "cosine": lambda x, y: functional.cosine_similarity(x.float(), y.float() + 3).sum(),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", GOOD)
def test_a_loss_that_keeps_its_precision(name: str, dtype: torch.dtype, made, measured) -> None:
    """Rounding of numbers and of one operation is within what is allowed."""
    function = GOOD[name]
    declared = {
        ("input" if function.__module__ != __name__ else "x"): XY["x"],
        ("target" if function.__module__ != __name__ else "y"): XY["y"],
    }
    assert worst(made, measured, function, dtype, **declared) < ALLOWED[dtype]


BAD = {
    "a difference of large numbers": lambda x, y: ((x + 300) - (y + 300)).square().sum(),
    "a power of a number near one": lambda x, y: (1 + (x - y) / 1000).pow(1000).sum(),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_loses_its_precision(name: str, dtype: torch.dtype, made, measured) -> None:
    """Subtracting what is nearly equal turns rounding into the result."""
    assert worst(made, measured, BAD[name], dtype) > ALLOWED[dtype]


def test_the_error_is_relative_to_the_whole_gradient(made, measured) -> None:
    """A gradient that is off by a fifth in all its elements has an error of a fifth."""
    scale = {torch.bfloat16: 1.2}

    def off(x):
        return scale.get(x.dtype, 1.0) * x.sum()

    found = worst(made, measured, off, torch.bfloat16, x=tg.real("B D", -2, 2))
    assert found == pytest.approx(0.2, abs=0.01)


def test_noise_near_the_minimum_is_not_held_against_it(made, measured) -> None:
    """Where the gradient is far below the typical one, its error is held against the typical."""
    evaluator = made(lambda x: (x - 0.3).square().sum(), {"B": 1}, dtype=torch.bfloat16,
                     x=tg.real("B", -2, 2))  # fmt: skip
    points = {"x": torch.tensor([[0.30078125], [1.0], [-1.0]], dtype=torch.bfloat16)}
    found = measured(precision, evaluator, points)[PRECISION]
    assert float(found.scale[0]) < 0.01
    assert float(found.measured.max()) < 0.01


def test_an_infinite_gradient_belongs_to_another_judge(made, measured) -> None:
    """Overflow of float16 is told by gradient_is_finite and is no error here."""
    found = worst(made, measured, lambda x: (x * 6e4).exp().sum(), torch.float16,
                  x=tg.real("B", 1, 2))  # fmt: skip
    assert found == 0.0


def test_other_devices_are_compared(made, measured, monkeypatch) -> None:
    """Every device but the cpu is measured; here there is none, or they agree."""
    evaluator = made(functional.mse_loss, input=XY["x"], target=XY["y"])
    assert all(float(m.measured.max()) < 1e-3 for m in measured(devices, evaluator, 32).values())
    # Stands for a second device on a machine that has none: the cpu under another name.
    monkeypatch.setattr("trainguard.observe.loss.probes.compared", lambda: ("cpu", "cpu:0"))
    found = measured(devices, evaluator, 32)
    assert float(found[Key("device", label="cpu:0")].measured.max()) == 0.0
