import torch
from torch.utils.data import DataLoader, Dataset

VOCABULARY, PAD = 50, 0


class Sentences(Dataset):
    """Sentences are kind where they have more kind words (1 to 10) than unkind ones (11 to 20)."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            length = int(torch.randint(4, 16, (), generator=generator))
            tokens = torch.randint(1, VOCABULARY, (length,), generator=generator)
            kind = ((tokens <= 10).sum() > ((tokens > 10) & (tokens <= 20)).sum()).long()
            self.rows.append((tokens, kind))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    tokens = torch.nn.utils.rnn.pad_sequence(
        [t for t, _ in rows], batch_first=True, padding_value=PAD
    )
    return tokens, torch.stack([label for _, label in rows])


def make_loader(split, batch):
    count, seed = {"train": (512, 1), "dev": (128, 2)}[split]
    train = split == "train"
    return DataLoader(
        Sentences(count, seed), batch, shuffle=train, collate_fn=collate, drop_last=train
    )
