"""House prices, after a notebook."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

features = torch.randn(320, 5)
prices = features.sum(dim=1) + 0.1 * torch.randn(320)
loader = DataLoader(TensorDataset(features, prices), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"Epoch {epoch}: {total / len(loader):.4f}")
