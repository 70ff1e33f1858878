"""What models return: its floating-point tensors, by name."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from trainguard.observe.model.outputs import flatten


@dataclass
class Answer:
    """What a model may return."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    count: int = 0


class Pair(NamedTuple):
    """What a model may return as well."""

    mean: Tensor
    index: Tensor


ONE = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        (ONE, ["output"]),
        ((ONE, ONE.long(), [ONE, None]), ["0", "2.0"]),
        ({"a": ONE, "b": {"c": ONE, "d": "word"}}, ["a", "b.c"]),
        (Answer(ONE, (ONE, ONE)), ["logits", "hidden.0", "hidden.1"]),
        (Pair(ONE, ONE.long()), ["mean"]),
        (torch.distributions.Normal(ONE, ONE), ["loc", "scale"]),
        (type("Bag", (), {})(), []),
        (torch.complex(ONE, ONE), ["output"]),
        ((ONE, torch.zeros(0)), ["0"]),
    ],
)
def test_outputs_are_named_by_their_path(returned: Any, names: list[str]) -> None:
    """Only floating-point tensors with something in them are outputs."""
    if not names:
        returned.state, names = ONE, ["state"]
    assert list(flatten(returned)) == names


def test_a_model_output_of_transformers_is_read() -> None:
    """It is a mapping; what is None in it is left out."""
    output = pytest.importorskip("transformers.modeling_outputs")
    returned = output.CausalLMOutputWithPast(logits=ONE, hidden_states=(ONE, ONE))
    assert list(flatten(returned)) == ["logits", "hidden_states.0", "hidden_states.1"]
