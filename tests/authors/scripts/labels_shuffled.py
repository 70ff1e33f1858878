import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 8)).astype("float32")
y = (X[:, 0] + X[:, 1] > 0).astype("int64")
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
ce = torch.nn.CrossEntropyLoss()
for epoch in range(6):
    Xs = X[rng.permutation(len(X))]
    ys = y[rng.permutation(len(y))]
    ds = TensorDataset(torch.from_numpy(Xs), torch.from_numpy(ys))
    for xb, yb in DataLoader(ds, batch_size=40):
        opt.zero_grad()
        out = ce(net(xb), yb)
        out.backward()
        opt.step()
    print(f"epoch {epoch} train_loss {out.item():.3f}")
