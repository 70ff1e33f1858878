import torch
from torch.utils.data import DataLoader, TensorDataset


def draw(count, seed):
    """Draw noisy images with a bright and a dark rectangle, and the masks of these."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.2 * torch.randn(count, 1, 16, 16, generator=generator)
    masks = torch.zeros(count, 16, 16, dtype=torch.long)
    for row in range(count):
        for label, value in ((1, 1.0), (2, -1.0)):
            x, y = torch.randint(0, 10, (2,), generator=generator).tolist()
            images[row, 0, y : y + 6, x : x + 6] += value
            masks[row, y : y + 6, x : x + 6] = label
    return images, masks


def make_loaders(batch):
    train = TensorDataset(*draw(160, 1))
    valid = TensorDataset(*draw(48, 2))
    return DataLoader(train, batch, shuffle=True), DataLoader(valid, batch)
