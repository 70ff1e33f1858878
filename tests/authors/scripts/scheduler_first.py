import warnings
import torch
from torch import nn

warnings.simplefilter("ignore")
model = nn.Linear(10, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
for step in range(25):
    x = torch.randn(16, 10)
    sched.step()
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    opt.step()
    print(f"step={step} loss={loss.item():.3f} lr={opt.param_groups[0]['lr']:.4f}")
