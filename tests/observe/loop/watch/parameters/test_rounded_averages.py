"""Averages whose precision rounds off what they should move by."""

from math import isnan

import pytest
import torch

from tests.observe.loop.averaging import looks, loop
from tests.observe.loop.trainings import network


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.995])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_updates_that_are_rounded_off(decay: float, kind: torch.dtype) -> None:
    """In 16 bits a small pull moves nothing; a larger one does, and so does any in 32."""

    def train() -> None:
        """Keep an average of a kind by the names of parameters."""
        model = network()
        shadow = {name: p.detach().clone().to(kind) for name, p in model.named_parameters()}

        def update() -> None:
            """Follow the model."""
            for name, parameter in model.named_parameters():
                shadow[name].lerp_(parameter.detach().to(kind), 1 - decay)

        loop(model, update, 60, rate=3e-2)

    stayed = [look.stayed for look in looks(train) if look.moved and not isnan(look.stayed)]
    if kind == torch.bfloat16 and decay > 0.99:
        assert len(stayed) >= 5
        assert sorted(stayed)[len(stayed) // 2] >= 0.3
    else:
        assert not stayed or max(stayed) < 0.05
