import torch

torch.manual_seed(42)
w = torch.nn.Linear(3, 1)
o = torch.optim.SGD(w.parameters(), lr=0.1)
for i in range(30):
    x = torch.rand(20, 3)
    e = torch.nn.functional.mse_loss(w(x), x.sum(1, keepdim=True))
    e.backward()
    o.zero_grad()
    o.step()
    print("loss", e.item())
