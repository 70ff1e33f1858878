import copy

import torch
from torch import nn
from torch.nn import functional as F


@torch.no_grad()
def update_ema(ema_model, model, decay=0.99):
    for e, p in zip(ema_model.parameters(), model.parameters()):
        e.mul_(1 - decay).add_(p, alpha=decay)


model = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 1))
ema_model = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    x = torch.randn(64, 6)
    loss = F.mse_loss(model(x), torch.sin(x).sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema(ema_model, model)
