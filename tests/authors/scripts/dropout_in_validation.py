import torch
from torch import nn


def run_epoch(net, loader, loss_fn, opt=None):
    losses = []
    for xb, yb in loader:
        loss = loss_fn(net(xb), yb)
        if opt is not None:
            loss.backward()
            opt.step()
            opt.zero_grad()
        losses.append(loss.item())
    return sum(losses) / len(losses)


x = torch.randn(480, 10)
y = x[:, :1] * 2 - x[:, 1:2]
train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:400], y[:400]), 40, shuffle=True)
val = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[400:], y[400:]), 40)
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    net.train()
    tr = run_epoch(net, train, nn.MSELoss(), opt)
    with torch.no_grad():
        va = run_epoch(net, val, nn.MSELoss())
    print(f"epoch={epoch} train={tr:.4f} val_loss={va:.4f}")
