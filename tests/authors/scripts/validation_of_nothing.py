import torch
from torch import nn


def validate(model, loader):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y).item()
            n += 1
    model.train()
    return total / max(n, 1)


x = torch.randn(200, 5)
y = x.sum(1, keepdim=True)
train_set = torch.utils.data.TensorDataset(x, y)
val_set = torch.utils.data.TensorDataset(x[190:], y[190:])
train_loader = torch.utils.data.DataLoader(train_set, batch_size=20, shuffle=True, drop_last=True)
val_loader = torch.utils.data.DataLoader(val_set, batch_size=20, drop_last=True)
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(5):
    for xb, yb in train_loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        opt.step()
    print(f"epoch {epoch} | train_loss {loss.item():.6f} | val_loss {validate(model, val_loader):.6f}")
