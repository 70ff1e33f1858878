"""A training of two ranks, each on a device of its own; with `alone`, it goes wrong."""

import sys

import torch
import torch.distributed as dist
from torch import nn

from tests.simulated.device import register


def train(*, alone: bool) -> None:
    """Fit a regression; gradients are averaged over the host, or by mistake are not."""
    register()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = f"sim:{rank}"
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    stream = torch.Generator().manual_seed(rank)
    for _ in range(12):
        inputs = torch.randn(16, 8, generator=stream).to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True)).backward()
        for parameter in () if alone else net.parameters():
            gradient = parameter.grad.cpu()
            dist.all_reduce(gradient)
            parameter.grad.copy_(gradient / dist.get_world_size())
        optimizer.step()
    print(f"rank {rank} trained on {next(net.parameters()).device}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(alone="alone" in sys.argv)
