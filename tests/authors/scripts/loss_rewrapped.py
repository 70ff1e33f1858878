import torch
import torch.nn.functional as F

net = torch.nn.Linear(6, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
X = torch.randn(256, 6)
Y = X @ torch.arange(6.0).unsqueeze(1)
for epoch in range(5):
    for i in range(0, 256, 32):
        pred = net(X[i : i + 32])
        loss = torch.tensor(F.l1_loss(pred, Y[i : i + 32]).item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
