import torch
from torch import nn

model = nn.Sequential(nn.Linear(15, 30), nn.ReLU(), nn.Linear(30, 1), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(40):
    xs = torch.randn(64, 15)
    ys = (xs[:, :1] > 0).float()
    loss = criterion(model(xs), ys)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 0:
        print("epoch {} loss {:.4f}".format(epoch, loss.item()))
