import random

import torch
from torch.utils.data import Dataset

WORDS, TAGS, IGNORED = 60, 4, -100


class Tagged(Dataset):
    """A word's tag is its number modulo 4, one more behind a word of the first ten."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            words = [rng.randrange(1, WORDS) for _ in range(rng.randrange(5, 13))]
            before = [WORDS, *words[:-1]]
            tags = [(word + (b <= 10)) % TAGS for word, b in zip(words, before)]
            self.rows.append({"input_ids": words, "labels": tags})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def pad(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    fill = lambda words, value: words + [value] * (longest - len(words))
    return {
        "input_ids": torch.tensor([fill(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], IGNORED) for row in rows]),
    }
