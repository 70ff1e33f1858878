import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Stations(L.LightningDataModule):
    """A day of measurements of 12 sensors, and what the 13th will say tomorrow."""

    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        generator = torch.Generator().manual_seed(5)
        days = torch.randn(480, 24, 12, generator=generator)
        weights = torch.randn(12, generator=generator)
        tomorrow = (days[:, -6:] @ weights).mean(1) + 0.05 * torch.randn(480, generator=generator)
        self.train = TensorDataset(days[:384], tomorrow[:384])
        self.val = TensorDataset(days[384:], tomorrow[384:])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)
