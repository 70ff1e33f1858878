import torch
from torch import nn, optim
import torch.nn.functional as F


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        x, y = data
        return F.cross_entropy(model(x), y).item()


def make(n):
    x = torch.randn(n, 20)
    return x, x[:, :5].argmax(1)


model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 5))
optimizer = optim.RMSprop(model.parameters(), lr=1e-3)
valid = make(200)
model.train()
for epoch in range(4):
    for _ in range(10):
        x, y = make(32)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    print("valid loss", evaluate(model, valid))
