"""
Losses from torch, pytorch-metric-learning, kornia and MONAI: what is right passes everything.

The subjects are declared in the guard files beside this one, so that `pytest --trainguard` runs
them too. Excuses are strict: a defect that a library mends turns its test red.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

import trainguard as tg

LIBRARIES = {
    "guard_torch": "torch",
    "guard_metric_learning": "pytorch_metric_learning",
    "guard_kornia": "kornia",
    "guard_monai": "monai",
}


def subjects(module: ModuleType) -> list[tuple[str, tg.Loss]]:
    """Return the declared losses of a guard file, each with a label."""
    found = [(name, loss) for name, loss in vars(module).items() if isinstance(loss, tg.Loss)]
    return [(f"{module.__name__.rpartition('.')[2]}-{name}", loss) for name, loss in found]


INSTALLED = [guard for guard, package in LIBRARIES.items() if find_spec(package)]
SUBJECTS = [
    pair for guard in INSTALLED for pair in subjects(import_module(f"tests.third_party.{guard}"))
]


@pytest.mark.parametrize("loss", [loss for _, loss in SUBJECTS], ids=[name for name, _ in SUBJECTS])
def test_a_loss_breaks_no_more_than_is_excused(loss: tg.Loss) -> None:
    """Broken holds the whole report; a note is no failure."""
    assert tg.check(loss, profile="quick")
