"""
Models of transformers, tiny and at random weights: decoder, encoder, both, and images.

They are called by keyword and return a ModelOutput, with the loss in it where labels are given.
"""

from typing import Any

from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import trainguard as tg

WORDS = 60
TINY: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def gpt2() -> nn.Module:
    """Return a GPT-2 whose head is tied to its embeddings."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    )


def llama() -> nn.Module:
    """Return a Llama with fewer heads of keys than of queries."""
    return LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=1))


def bert() -> nn.Module:
    """Return a BERT that fills in masked words."""
    return BertForMaskedLM(BertConfig(**TINY))


def bert_classifier() -> nn.Module:
    """Return a BERT that reads the first word's pooled state."""
    return BertForSequenceClassification(BertConfig(**TINY, num_labels=5))


def t5() -> nn.Module:
    """Return a T5, whose decoder is fed the labels, moved by one."""
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
    )


def vit() -> nn.Module:
    """Return a ViT over four patches a side."""
    unlike = {"vocab_size", "max_position_embeddings"}
    small = {name: size for name, size in TINY.items() if name not in unlike}
    return ViTForImageClassification(ViTConfig(**small, image_size=32, patch_size=8, num_labels=7))


def checkpointed(model: Any) -> None:
    """Compute the activations of each block again in the backward pass."""
    model.gradient_checkpointing_enable()


text = tg.integer("B T", 0, WORDS - 1)
valid = tg.mask("B T", padding=0)

gpt2_model = tg.Model(
    gpt2,
    input_ids=text,
    labels=text,
    sizes={"T": (3, 12)},
    classes=WORDS,
    causal="T",
    longer={"T": 64},
    checkpoint=checkpointed,
    dtypes=("float32", "bfloat16"),
)
gpt2_with_padding = tg.Model(
    gpt2, input_ids=text, attention_mask=valid, sizes={"T": (3, 12)}, padding="attention_mask"
)
llama_model = tg.Model(
    llama,
    input_ids=text,
    labels=text,
    sizes={"T": (3, 12)},
    classes=WORDS,
    causal="T",
    longer={"T": 64},
    checkpoint=checkpointed,
    dtypes=("float32", "bfloat16"),
)
bert_model = tg.Model(
    bert,
    input_ids=text,
    attention_mask=valid,
    labels=text,
    sizes={"T": (2, 12)},
    classes=WORDS,
    padding="attention_mask",
    longer={"T": 64},
    checkpoint=checkpointed,
)
bert_for_classes = tg.Model(
    bert_classifier,
    input_ids=text,
    attention_mask=valid,
    labels=tg.integer("B", 0, 4),
    sizes={"T": (2, 12)},
    classes=5,
    padding="attention_mask",
)
t5_model = tg.Model(
    t5,
    input_ids=tg.integer("B S", 0, WORDS - 1),
    attention_mask=tg.mask("B S", padding=0),
    labels=text,
    sizes={"S": (2, 9), "T": (2, 12)},
    classes=WORDS,
    causal="T",
    padding="attention_mask",
    checkpoint=checkpointed,
)
vit_model = tg.Model(
    vit,
    pixel_values=tg.real("B 3 32 32", -1, 1),
    labels=tg.integer("B", 0, 6),
    classes=7,
    checkpoint=checkpointed,
    dtypes=("float32", "bfloat16"),
)
