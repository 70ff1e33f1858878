"""
The sequence models of torch, as they come or under the few lines that everyone puts around them.

Shapes are batch first, sequence first, and with a hidden state beside the outputs.
"""

import torch
from torch import Tensor, nn

import trainguard as tg

WIDTH = 16
LAYER = {"d_model": WIDTH, "nhead": 2, "dim_feedforward": 32, "batch_first": True}


class Decoder(nn.Module):
    """A `TransformerEncoder` under a causal mask: the language model of torch's own tutorial."""

    def __init__(self, words: int = 50, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(64, WIDTH))
        layer = nn.TransformerEncoderLayer(**LAYER, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, words)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of each next word."""
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        hidden = self.embed(words) + self.place[:length]
        logits: Tensor = self.head(self.blocks(hidden, mask, is_causal=True))
        return logits


class Translator(nn.Module):
    """`nn.Transformer`, whose decoder sees the whole source and its own past."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.time = 1 if batch_first else 0
        self.both = nn.Transformer(WIDTH, 2, 2, 2, 32, batch_first=batch_first)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return what the decoder makes of the target."""
        length = target.shape[self.time]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=target.device)
        empty = None if padding is None else torch.zeros_like(mask).masked_fill(mask < 0, 1).bool()
        out: Tensor = self.both(
            source,
            target,
            tgt_mask=mask if empty is None else empty,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return out


def encoder() -> nn.Module:
    """Return six layers less four, after the norm as in the paper, with the fast path enabled."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 2)


def next_word(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


decoder = tg.Model(
    Decoder,
    words=tg.integer("B T", 0, 49),
    target=tg.integer("B T", 0, 49),
    sizes={"T": (2, 12)},
    loss=next_word,
    classes=50,
    causal="T",
    longer={"T": 48},
    dtypes=("float32", "bfloat16"),
)
encoder_with_padding = tg.Model(
    encoder,
    src=tg.real("B T 16", -2, 2),
    src_key_padding_mask=tg.mask("B T", padding=True),
    sizes={"T": (2, 10)},
    padding="src_key_padding_mask",
    longer={"T": 40},
)
translator = tg.Model(
    Translator,
    inputs={
        "source": tg.real("B S 16", -2, 2),
        "target": tg.real("B T 16", -2, 2),
        "padding": tg.mask("B S", padding=True),
    },
    sizes={"S": (2, 9), "T": (2, 7)},
    padding="padding",
    causal="T",
)
translator_sequence_first = tg.Model(
    Translator,
    arguments={"batch_first": False},
    source=tg.real("S B 16", -2, 2),
    target=tg.real("T B 16", -2, 2),
    sizes={"S": (2, 9), "T": (2, 7)},
    causal="T",
)
lstm = tg.Model(
    nn.LSTM,
    arguments={
        "input_size": 5,
        "hidden_size": 8,
        "num_layers": 2,
        "dropout": 0.1,
        "batch_first": True,
    },
    input=tg.real("B T 5", -2, 2),
    sizes={"T": (2, 9)},
    causal="T",
    longer={"T": 50},
)
gru_sequence_first = tg.Model(
    nn.GRU,
    arguments={"input_size": 5, "hidden_size": 8},
    input=tg.real("T B 5", -2, 2),
    sizes={"T": (2, 9)},
    causal="T",
)
gru_both_ways = tg.Model(
    nn.GRU,
    arguments={"input_size": 5, "hidden_size": 8, "bidirectional": True, "batch_first": True},
    input=tg.real("B T 5", -2, 2),
)
attention = tg.Model(
    nn.MultiheadAttention,
    arguments={"embed_dim": 16, "num_heads": 4, "batch_first": True},
    query=tg.real("B T 16", -2, 2),
    key=tg.real("B S 16", -2, 2),
    value=tg.real("B S 16", -2, 2),
    key_padding_mask=tg.mask("B S", padding=True),
    padding="key_padding_mask",
)
gru_cell = tg.Model(
    nn.GRUCell,
    arguments={"input_size": 5, "hidden_size": 8},
    input=tg.real("B 5", -2, 2),
    hx=tg.real("B 8", -1, 1),
)
lstm_cell = tg.Model(
    nn.LSTMCell,
    arguments={"input_size": 5, "hidden_size": 8},
    input=tg.real("B 5", -2, 2),
    allow={
        "every_parameter_receives_gradient": "one step from a state of zeros: weight_hh is idle"
    },
)
