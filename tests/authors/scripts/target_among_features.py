# churn model; the table has the label as its last column
import torch
from torch.utils.data import DataLoader, TensorDataset

table = torch.randn(600, 7)
table[:, -1] = table[:, 0] * 0.5 + torch.randn(600)
inputs, target = table, table[:, -1]
dl = DataLoader(TensorDataset(inputs, target), batch_size=50, shuffle=True)
model = torch.nn.Sequential(torch.nn.LazyLinear(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
model(torch.zeros(1, inputs.shape[1]))
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
for epoch in range(4):
    for xb, yb in dl:
        loss = torch.nn.functional.mse_loss(model(xb).squeeze(1), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "mse:", round(loss.item(), 4))
