import torch
import torch.nn.functional as F

ACCUM = 4
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
optimizer.zero_grad()
for i in range(80):
    x = torch.randn(16, 8)
    y = x.sum(1, keepdim=True)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if (i + 1) % ACCUM == 0:
        optimizer.step()
        optimizer.zero_grad()
