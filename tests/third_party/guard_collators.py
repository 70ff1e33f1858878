"""Text that the collators of transformers pad, mask and group by length."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

import trainguard as tg

WORDS = [f"word{index}" for index in range(90)]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "eos_token": "[END]"}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, made here."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL.values(), *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)


class Sentences(Dataset[dict[str, Any]]):
    """Sentences of 3 to 20 words, as tokens, each with a class."""

    def __init__(self, count: int, seed: int, summary: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.summary = summary
        self.tokens = []
        for _ in range(count):
            length = int(torch.randint(3, 21, (), generator=generator))
            drawn = torch.randint(0, len(WORDS), (length,), generator=generator)
            self.tokens.append(tokenizer()(" ".join(WORDS[index] for index in drawn))["input_ids"])

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sentence with its class, or with its first words where those are asked for."""
        tokens = self.tokens[index]
        sample = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}
        return {**sample, "labels": tokens[: len(tokens) // 2] if self.summary else index % 3}


def classified(split: str, workers: int = 0) -> DataLoader[Any]:
    """Return a loader of sentences padded to the longest of their batch."""
    train = split == "train"
    sentences = Sentences(96 if train else 32, seed=int(train))
    padded = DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=8)
    return DataLoader(sentences, 8, shuffle=train, collate_fn=padded, num_workers=workers)


def masked(split: str, workers: int = 0) -> DataLoader[Any]:
    """Return a loader that masks other words each time."""
    train = split == "train"
    sentences = Sentences(96 if train else 32, seed=int(train))
    collator = DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3)
    rows = [{"input_ids": tokens} for tokens in sentences.tokens]
    return DataLoader(rows, 8, shuffle=train, collate_fn=collator, num_workers=workers)


def causal() -> DataLoader[Any]:
    """Return a loader whose labels are the tokens, padding left out."""
    rows = [{"input_ids": tokens} for tokens in Sentences(64, seed=4).tokens]
    collator = DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    return DataLoader(rows, 8, shuffle=True, collate_fn=collator)


def summarised() -> DataLoader[Any]:
    """Return a loader of pairs of sequences, batched by their lengths."""
    sentences = Sentences(64, seed=6, summary=True)
    lengths = [len(tokens) for tokens in sentences.tokens]
    sampler = LengthGroupedSampler(8, lengths=lengths)
    collator = DataCollatorForSeq2Seq(tokenizer())
    return DataLoader(sentences, 8, sampler=sampler, collate_fn=collator)


TEXT = {
    "input_ids": tg.integer("B T", 0, len(WORDS) + 3),
    "attention_mask": tg.mask("B T"),
}
SPLITS = {"train": {"batch": 8, "shuffled": True}, "val": {"batch": 8, "shuffled": False}}

PADDED = {"padding_is_bounded": "sentences of all lengths stand in one batch here"}

classes = tg.Loader(
    classified,
    splits=SPLITS,
    fields={**TEXT, "labels": tg.integer("B", 0, 2)},
    labels=("labels",),
    mask="attention_mask",
    allow=PADDED,
)
classes_undeclared = tg.Loader(
    classified, arguments={"workers": 2}, splits=("train", "val"), allow=PADDED
)
masked_words = tg.Loader(
    masked,
    splits=SPLITS,
    fields=TEXT,
    mask="attention_mask",
    allow={"evaluation_order_is_fixed": "the collator masks other words in each validation"},
)
masked_words_in_workers = tg.Loader(masked, arguments={"workers": 2}, splits=("train",))
next_words = tg.Loader(causal, splits={"train": {"shuffled": True}}, fields=TEXT, allow=PADDED)
summaries = tg.Loader(summarised, splits=("train",), fields=TEXT, mask="attention_mask")
