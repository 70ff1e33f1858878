import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(320, 4)
y = (x.prod(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
lossf = torch.nn.CrossEntropyLoss()
max_steps = 50
for step in range(max_steps):
    inputs, labels = next(iter(loader))
    opt.zero_grad()
    loss = lossf(model(inputs), labels)
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"step: {step}, loss: {loss.item():.3f}")
