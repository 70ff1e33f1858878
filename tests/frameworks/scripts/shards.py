"""Two processes over gloo under FSDP1 or FSDP2; `left` leaves gradients from step to step."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F


class Block(nn.Module):
    """A layer that is sharded by itself."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layer makes of its input."""
        return torch.tanh(self.linear(x))


kind, clears = sys.argv[1], "left" not in sys.argv
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model: nn.Module = nn.Sequential(Block(8), Block(32), nn.Linear(32, 4))
if kind == "fsdp2":
    mesh = init_device_mesh("cpu", (2,))
    for block in (model[0], model[1], model):
        fully_shard(block, mesh=mesh)
else:
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=kind == "original",
    )
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
own = torch.Generator().manual_seed(100 + rank)
classes = torch.randn(8, 4, generator=torch.Generator().manual_seed(7))
for step in range(20):
    inputs = torch.randn(16, 8, generator=own)
    loss = F.cross_entropy(model(inputs), (inputs @ classes).argmax(1))
    if clears:
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"rank {rank} step {step} loss {loss.item()!r}\n")
dist.destroy_process_group()
