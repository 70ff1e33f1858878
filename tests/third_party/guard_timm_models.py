"""
The small models that timm tests itself with, at random weights, for images of 64 pixels a side.

They need a session of their own: `nox -s timm`.
"""

from typing import Any

import pytest
from torch.nn.functional import cross_entropy

import trainguard as tg

pytest.importorskip("timm")  # it is not in the environment of the other tests

from timm import create_model


def of(name: str, side: int = 64, **options: Any) -> tg.Model:
    """Declare one of timm's models, with a loss over seven classes."""
    return tg.Model(
        create_model,
        arguments={"model_name": name, "num_classes": 7, **options},
        x=tg.real(f"B 3 {side} {side}", -2, 2),
        target=tg.integer("B", 0, 6),
        loss=cross_entropy,
        name=name,
    )


vit = of("test_vit", img_size=64)
vit_with_registers = of("test_vit3", img_size=64)
resnet = of("test_resnet")
convnext = of("test_convnext")
efficientnet = of("test_efficientnet")
byobnet = of("test_byobnet")
nfnet = of("test_nfnet")
