"""A compiled module, then a compiled function of a module, both with dropout."""

import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
compiled = torch.compile(model, backend="aot_eager")


def batch():
    x = torch.randn(32, 8)
    return x, x[:, :3].argmax(1)


for _ in range(20):
    x, y = batch()
    optimizer.zero_grad()
    F.cross_entropy(compiled(x), y).backward()
    optimizer.step()


@torch.compile(backend="aot_eager")
def loss_of(x, y):
    return F.cross_entropy(model(x), y)


for step in range(20):
    x, y = batch()
    optimizer.zero_grad()
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}")
