"""Checkpoints in the formats of torch, its distributed package and safetensors, as subjects."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import trainguard as tg


class Run:
    """A small transformer and its optimizer, on data that the number of the step decides."""

    def __init__(self):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.Linear(5, 16), layer, nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.count = 0

    def step(self):
        """Make a step."""
        x = torch.randn(8, 4, 5, generator=torch.Generator().manual_seed(self.count))
        self.optimizer.zero_grad()
        (self.model(x).mean(1) - x[:, 0, :1]).square().mean().backward()
        self.optimizer.step()
        self.count += 1


def beside(path):
    """Return where a new checkpoint is written before it takes the place of the old one."""
    return Path(f"{path}.new")


def save(run, path):
    """Write with torch.save."""
    state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    torch.save({**state, "count": run.count}, beside(path))
    beside(path).replace(path)


def load(path):
    """Return a run that goes on from what torch.load reads, mapped into memory."""
    run, state = Run(), torch.load(path, weights_only=True, mmap=True)
    run.model.load_state_dict(state["model"], assign=True)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
    run.optimizer.load_state_dict(state["optimizer"])
    run.count = state["count"]
    return run


def save_sharded(run, path):
    """Write a folder of shards, and let the last link point to it."""
    folder = path.parent / f"shards_{run.count}"
    model, optimizer = get_state_dict(run.model, run.optimizer)
    dcp.save({"model": model, "optimizer": optimizer, "count": run.count}, checkpoint_id=folder)
    beside(path).symlink_to(folder.name)
    beside(path).replace(path)


def load_sharded(run, path):
    """Read a folder of shards into a run."""
    model, optimizer = get_state_dict(run.model, run.optimizer)
    state = {"model": model, "optimizer": optimizer, "count": 0}
    dcp.load(state, checkpoint_id=path.resolve())
    set_state_dict(
        run.model,
        run.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    run.count = state["count"]


def save_weights_alone(run, path):
    """Write the weights with safetensors, as a model is published."""
    from safetensors.torch import save_file

    save_file(run.model.state_dict(), f"{path}.new")
    beside(path).replace(path)


def load_weights_alone(run, path):
    """Read the weights of a published model."""
    from safetensors.torch import load_file

    run.model.load_state_dict(load_file(path))


one_file = tg.Checkpoint(build=Run, step=Run.step, save=save, load=load)
sharded = tg.Checkpoint(build=Run, step=Run.step, save=save_sharded, load=load_sharded)
weights_alone = tg.Checkpoint(
    build=Run,
    step=Run.step,
    save=save_weights_alone,
    load=load_weights_alone,
    files="model.safetensors",
    allow={
        "checkpoint_is_complete": "a published model has no optimizer",
        "resume_continues_the_run": "nor a place in the data",
    },
)
