"""Checkpoints of Lightning's Trainer, saved by its ModelCheckpoint within and after epochs."""

from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainguard as tg


class Regression(lightning.LightningModule):
    """A network with dropout and a schedule."""

    def __init__(self, dropout):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))

    def training_step(self, batch, index):
        """Return the loss."""
        x, y = batch
        return (self.net(x) - y).square().mean()

    def configure_optimizers(self):
        """Return the optimizer, and the schedule that is advanced after each step."""
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(directory: Path, resume=False, dropout=0.0):
    """Train for four epochs, and save at the end of each."""
    torch.manual_seed(0)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=8)
    saver = ModelCheckpoint(directory, save_last=True, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=4,
        callbacks=[saver],
        default_root_dir=directory,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = str(directory / "last.ckpt") if resume else None
    trainer.fit(Regression(dropout), loader, ckpt_path=last)


trainer = tg.Checkpoint(train)
with_dropout = tg.Checkpoint(
    train,
    arguments={"dropout": 0.1},
    allow={"resume_continues_the_run": "Lightning saves no generators: the masks come again"},
)
