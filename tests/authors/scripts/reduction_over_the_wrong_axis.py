import torch
from torch import nn

model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    x = torch.randn(32, 10)
    y = x[:, :5] - x[:, 5:]
    error = (model(x) - y).mean(dim=0).pow(2).sum()
    opt.zero_grad()
    error.backward()
    opt.step()
