from torch import nn


class Encoder(nn.Module):
    def __init__(self, inputs=20, width=64, outputs=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
        )
        self.project = nn.Linear(width, outputs)

    def forward(self, views):
        return self.project(self.body(views))
