import lightning as L
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR


def pinball(prediction, target, quantiles=(0.1, 0.5, 0.9)):
    """Return the mean quantile loss; prediction has a column for each quantile."""
    levels = torch.tensor(quantiles, dtype=prediction.dtype, device=prediction.device)
    error = target.unsqueeze(-1) - prediction
    return torch.maximum(levels * error, (levels - 1) * error).mean()


class Forecaster(L.LightningModule):
    def __init__(self, sensors=12, hidden=48, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 3))

    def forward(self, days):
        states, _ = self.rnn(days)
        return self.head(self.norm(states[:, -1]))

    def training_step(self, batch, _):
        days, tomorrow = batch
        loss = pinball(self(days), tomorrow)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        days, tomorrow = batch
        self.log("val_loss", pinball(self(days), tomorrow), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = CosineAnnealingLR(optimizer, T_max=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
