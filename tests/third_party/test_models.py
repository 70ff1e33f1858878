"""
Models of torch, transformers, x-transformers, MONAI, kornia and timm: what is right passes.

The subjects are declared in the guard files beside this one. What people do wrong with the same
models is below, and each mistake is found by the invariant that is named for it.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainguard as tg
from tests.third_party.guard_torch_models import WIDTH, Translator

LIBRARIES = {
    "guard_torch_models": "torch",
    "guard_transformers_models": "transformers",
    "guard_x_transformers_models": "x_transformers",
    "guard_monai_models": "monai",
    "guard_kornia_models": "kornia",
    "guard_timm_models": "timm",
}


def subjects(module: ModuleType) -> list[tuple[str, tg.Model]]:
    """Return the declared models of a guard file, each with a label."""
    found = [(name, model) for name, model in vars(module).items() if isinstance(model, tg.Model)]
    return [(f"{module.__name__.rpartition('.')[2]}-{name}", model) for name, model in found]


INSTALLED = [guard for guard, package in LIBRARIES.items() if find_spec(package)]
SUBJECTS = [
    pair for guard in INSTALLED for pair in subjects(import_module(f"tests.third_party.{guard}"))
]


@pytest.mark.parametrize(
    "model", [model for _, model in SUBJECTS], ids=[name for name, _ in SUBJECTS]
)
def test_a_model_breaks_no_more_than_is_excused(model: tg.Model) -> None:
    """Broken holds the whole report; there is no note about what the libraries built either."""
    verdicts = tg.check(model, devices=["cpu"])
    assert [v.notes for v in verdicts if v.notes and v.outcome == "passed"] == []


class WithoutMemoryMask(Translator):
    """The padding of the source is hidden from the encoder, and not from the decoder."""

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return what the decoder makes of the target."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        out: Tensor = self.both(source, target, tgt_mask=mask < 0, src_key_padding_mask=padding)
        return out


class WithoutMask(Translator):
    """The decoder sees the whole target."""

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return what the decoder makes of the target."""
        out: Tensor = self.both(source, target)
        return out


class Averaged(nn.Module):
    """A mean over all words of what hides padding from itself, padded words included."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        """Return one vector for each sample."""
        mean: Tensor = self.encoder(words, src_key_padding_mask=padding).mean(1)
        return mean


class Detached(nn.Module):
    """A head on an encoder that is meant to be trained, and runs under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of each word."""
        with torch.no_grad():
            hidden = self.encoder(words)[0]
        logits: Tensor = self.head(hidden)
        return logits


def sequence_first() -> nn.Module:
    """Return an encoder whose first axis is the sequence, which is torch's default."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 32), 1)


WORDS = tg.real("B T 16", -2, 2)
SIZES = {"S": (2, 9), "T": (2, 7)}
PADDED = {"source": tg.real("B S 16", -2, 2), "padding": tg.mask("B S", padding=True)}
RECURRENT = {"input_size": WIDTH, "hidden_size": 8}
MISTAKES: list[tuple[str, tg.Model]] = [
    (
        "samples_do_not_mix",
        tg.Model(sequence_first, src=WORDS, sizes={"T": (2, 7)}),
    ),
    ("samples_do_not_mix", tg.Model(nn.LSTM, arguments=RECURRENT, input=WORDS)),
    (
        "future_does_not_leak",
        tg.Model(
            nn.GRU,
            arguments={**RECURRENT, "bidirectional": True, "batch_first": True},
            input=WORDS,
            causal="T",
        ),
    ),
    (
        "future_does_not_leak",
        tg.Model(WithoutMask, source=PADDED["source"], target=WORDS, sizes=SIZES, causal="T"),
    ),
    (
        "padding_is_ignored",
        tg.Model(
            WithoutMemoryMask, inputs={**PADDED, "target": WORDS}, sizes=SIZES, padding="padding"
        ),
    ),
    (
        "padding_is_ignored",
        tg.Model(
            Averaged,
            inputs={"words": WORDS, "padding": tg.mask("B T", padding=True)},
            padding="padding",
        ),
    ),
    ("every_parameter_receives_gradient", tg.Model(Detached, words=WORDS)),
]


def label(value: Any) -> str:
    """Return the name of an invariant or of a subject, for a node id."""
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("invariant", "model"), MISTAKES, ids=label)
def test_a_mistake_with_a_right_model_is_found(invariant: str, model: tg.Model) -> None:
    """It is found by the invariant that is named for it, and by no other."""
    with pytest.raises(tg.Broken) as failed:
        tg.check(model, devices=["cpu"])
    assert {verdict.invariant.name for verdict in failed.value.verdicts} == {invariant}
