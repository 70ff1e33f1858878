"""Train with FSDP2 on the CPU, in a process group of one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
mesh = init_device_mesh("cpu", (1,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(12):
    inputs = torch.randn(32, 16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :4])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    inputs = torch.randn(32, 16)
    print("validation", nn.functional.mse_loss(model(inputs), inputs[:, :4]).item())
dist.destroy_process_group()
