"""Models of x-transformers: a decoder with its own loss, one without, an encoder, and both."""

from torch import Tensor, nn
from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    XTransformer,
)

import trainguard as tg

WORDS, WIDTH = 50, 32


def decoder(**options: object) -> nn.Module:
    """Return a causal language model."""
    layers = Decoder(dim=WIDTH, depth=2, heads=2, attn_dim_head=32, **options)
    return TransformerWrapper(num_tokens=WORDS, max_seq_len=64, attn_layers=layers)


def wrapped() -> nn.Module:
    """Return the language model under the wrapper that moves the targets and takes the loss."""
    return AutoregressiveWrapper(decoder(rotary_pos_emb=True))


def encoder() -> nn.Module:
    """Return an encoder of continuous frames with a mask."""
    layers = Encoder(dim=WIDTH, depth=2, heads=2, attn_dim_head=32)
    return ContinuousTransformerWrapper(dim_in=6, dim_out=4, max_seq_len=64, attn_layers=layers)


def both() -> nn.Module:
    """Return an encoder and a decoder, which return their loss."""
    return XTransformer(
        dim=WIDTH,
        **{
            f"{part}_{name}": value
            for part in ("enc", "dec")
            for name, value in {
                "num_tokens": WORDS,
                "depth": 1,
                "heads": 2,
                "max_seq_len": 32,
            }.items()
        },
    )


def next_word(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


text = tg.integer("B T", 0, WORDS - 1)

plain = tg.Model(
    decoder,
    x=text,
    target=text,
    sizes={"T": (2, 12)},
    loss=next_word,
    classes=WORDS,
    causal="T",
    longer={"T": 64},
    dtypes=("float32", "bfloat16"),
)
rotary = tg.Model(
    decoder,
    arguments={"rotary_pos_emb": True, "attn_dropout": 0.1, "ff_dropout": 0.1},
    x=text,
    target=text,
    sizes={"T": (2, 12)},
    loss=next_word,
    classes=WORDS,
    causal="T",
)
autoregressive = tg.Model(wrapped, x=text, sizes={"T": (3, 12)}, classes=WORDS)
frames = tg.Model(
    encoder,
    x=tg.real("B T 6", -2, 2),
    mask=tg.mask("B T"),
    sizes={"T": (2, 12)},
    padding="mask",
    longer={"T": 64},
)
encoder_and_decoder = tg.Model(
    both,
    src=tg.integer("B S", 0, WORDS - 1),
    tgt=text,
    mask=tg.mask("B S"),
    sizes={"S": (2, 9), "T": (3, 9)},
    classes=WORDS,
    padding="mask",
)
