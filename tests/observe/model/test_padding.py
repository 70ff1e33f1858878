"""What the probe of padding finds in real models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.observer import observe

SIZES = {"T": (4, 6)}
TOKENS = tg.integer("B T", 0, 9)
ROUNDING = 1e-5


def passes(model: tg.Model) -> list[Pass]:
    """Observe a model."""
    return list(observe(model, "cpu", "float32", Settings()).trace("padding"))


def leaks(model: tg.Model) -> set[str]:
    """Return the outputs that depend on padding; each must have been judged."""
    found = passes(model)
    assert found
    return {seen.place for seen in found if seen.measured > ROUNDING}


class Pooled(nn.Module):
    """Tokens and a mask, and a function of the embedding and what is kept."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 3)
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        """Return what the function makes of both."""
        return self.function(self.embed(x), mask.unsqueeze(-1))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, keep: x.mean(1), {"output"}),
        (lambda x, keep: x.softmax(1), {"output"}),
        (lambda x, keep: functional.avg_pool1d(x.mT, 3, 1, 1).mT, {"output"}),
        (lambda x, keep: (x * keep).sum(1) / keep.sum(1), set()),
        (lambda x, keep: x, set()),
        (lambda x, keep: x.masked_fill(~keep, -torch.inf).softmax(1), set()),
        (lambda x, keep: x.masked_fill(~keep, -1e9).softmax(1).mT, set()),
        (lambda x, keep: {"kept": x, "bad": x.amax(1)}, {"bad"}),
    ],
    ids=[
        "mean",
        "softmax",
        "edges",
        "masked mean",
        "pointwise",
        "minus inf",
        "large",
        "one of two",
    ],
)
def test_padding(function: Callable[[Tensor, Tensor], Any], expected: set[str]) -> None:
    """Only what reaches a kept position or a whole sample counts."""
    model = tg.Model(
        lambda: Pooled(function),
        x=TOKENS,
        mask=tg.mask("B T"),
        sizes=SIZES,
        padding="mask",
        name="n",
    )
    assert leaks(model) == expected


def test_padding_by_lengths_and_with_the_time_first() -> None:
    """The lengths of the samples mark padding as well, and the batch may come second."""

    class Lengths(nn.Module):
        """A sum over time, of all or of as many steps as a sample has."""

        def __init__(self, honest: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.honest = honest

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            """Return the sum."""
            keep = torch.arange(len(x))[:, None] < lengths
            return (self.linear(x) * (keep[..., None] if self.honest else 1.0)).sum(0)

    for honest, expected in ((True, set()), (False, {"output"})):
        model = tg.Model(
            Lengths,
            arguments={"honest": honest},
            x=tg.real("T B 3", -1, 1),
            lengths=tg.integer("B", 1, "T"),
            sizes=SIZES,
            padding="lengths",
        )
        assert leaks(model) == expected


def test_padding_that_is_marked_in_an_unknown_way_is_not_judged() -> None:
    """An integer input may mean anything."""
    model = tg.Model(
        lambda: Pooled(lambda x, keep: x), x=TOKENS, mask=tg.integer("B T", 0, 1), padding="mask",
        sizes=SIZES, name="n",
    )  # fmt: skip
    with pytest.raises(Unjudged, match=r"neither a tg\.mask"):
        passes(model)


@pytest.mark.parametrize(("honest", "expected"), [(True, set()), (False, {"output"})])
def test_the_memory_of_a_decoder(honest: bool, expected: set[str]) -> None:
    """The output follows the target's length, and padding of the source must not get into it."""

    class Translator(nn.Module):
        """A transformer that masks its source, and the memory of it or not."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

        def forward(self, src: Tensor, tgt: Tensor, mask: Tensor) -> Tensor:
            """Return the features of the target."""
            memory = {"memory_key_padding_mask": ~mask} if honest else {}
            return self.inner(src, tgt, src_key_padding_mask=~mask, **memory)

    model = tg.Model(
        Translator,
        src=tg.real("B S 8", -1, 1),
        tgt=tg.real("B T 8", -1, 1),
        mask=tg.mask("B S"),
        sizes={"S": (4, 7), "T": (3, 5)},
        padding="mask",
    )
    assert leaks(model) == expected
