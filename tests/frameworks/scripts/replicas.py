"""Two processes over gloo under DistributedDataParallel, with accumulation under no_sync."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(256, 8)
data = TensorDataset(x, x[:, :3].argmax(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 16, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for index, (inputs, labels) in enumerate(loader):
        last = index % 2 == 1
        with nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(inputs), labels) / 2
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {2 * loss.item():.4f}")
dist.destroy_process_group()
