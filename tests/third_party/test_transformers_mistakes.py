"""What people do wrong with models of transformers is found by the invariant named for it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import trainguard as tg

pytest.importorskip("transformers")

from transformers import BertConfig, BertLMHeadModel, BertModel

from tests.third_party import guard_transformers_models as tiny

SIZES = {"T": (3, 12)}


class LastWord(nn.Module):
    """A GPT-2 that classifies by its last position, which in most texts is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.body = tiny.gpt2()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of each text."""
        logits: Tensor = self.body(input_ids, attention_mask=attention_mask).logits[:, -1]
        return logits


class MeanOfAll(nn.Module):
    """A sentence embedding of a BERT: the mean of all positions, padded ones included."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(**tiny.TINY)
        self.body = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one vector for each text."""
        mean: Tensor = self.body(input_ids, attention_mask).last_hidden_state.mean(1)
        return mean


class WithPooler(nn.Module):
    """A classifier on the first state of a BERT, whose own pooler stays where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = BertModel(BertConfig(**tiny.TINY))
        self.head = nn.Linear(32, 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of each text."""
        logits: Tensor = self.head(self.body(input_ids).last_hidden_state[:, 0])
        return logits


def no_decoder() -> nn.Module:
    """Return a BERT that is trained as a language model and was never told to look back only."""
    return BertLMHeadModel(BertConfig(**tiny.TINY))


def unit_embeddings() -> nn.Module:
    """Return a GPT-2 whose embeddings, tied to its head, are drawn as `nn.Embedding` draws them."""
    model = tiny.gpt2()
    with torch.no_grad():
        nn.init.normal_(model.transformer.wte.weight)
    return model


PADDED = {"input_ids": tiny.text, "attention_mask": tiny.valid}
LABELLED = {"input_ids": tiny.text, "labels": tiny.text}
MISTAKES: dict[Callable[..., nn.Module], tuple[str, tg.Model]] = {
    LastWord: (
        "padding_is_ignored",
        tg.Model(LastWord, inputs=PADDED, sizes=SIZES, padding="attention_mask"),
    ),
    MeanOfAll: (
        "padding_is_ignored",
        tg.Model(MeanOfAll, inputs=PADDED, sizes=SIZES, padding="attention_mask"),
    ),
    WithPooler: (
        "every_parameter_receives_gradient",
        tg.Model(WithPooler, input_ids=tiny.text, sizes=SIZES),
    ),
    no_decoder: (
        "future_does_not_leak",
        tg.Model(no_decoder, inputs=LABELLED, sizes=SIZES, causal="T"),
    ),
    unit_embeddings: (
        "initial_loss_is_expected",
        tg.Model(unit_embeddings, inputs=LABELLED, sizes=SIZES, classes=tiny.WORDS),
    ),
    tiny.bert: (
        "longer_inputs_work",
        tg.Model(tiny.bert, inputs=LABELLED, sizes=SIZES, longer={"T": 100}),
    ),
}


@pytest.mark.filterwarnings("ignore")  # of transformers, about BERT as a decoder
@pytest.mark.parametrize("built", MISTAKES, ids=lambda built: built.__name__)
def test_a_mistake_is_found(built: Callable[..., nn.Module]) -> None:
    """It is found by one invariant, and no other objects."""
    invariant, model = MISTAKES[built]
    with pytest.raises(tg.Broken) as failed:
        tg.check(model, devices=["cpu"])
    assert {verdict.invariant.name for verdict in failed.value.verdicts} == {invariant}
