"""Every attribute that a recording may replace, and every global hook that it may add."""

import sys

import torch
import torch.cuda.amp.common
import torch.utils.checkpoint
from torch import nn
from torch._functorch import eager_transforms
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers
from torch.utils import data

CLASSES = (
    torch.Tensor,
    nn.Module,
    optimizers.Optimizer,
    torch.amp.GradScaler,
    torch.autograd.Function,
    torch.autograd.graph.saved_tensors_hooks,
    data.Subset,
)
MODULES = (
    sys,
    torch,
    torch.autograd,
    torch.random,
    torch.amp,
    torch.optim,
    optimizers,
    lr_scheduler,
    nn.init,
    nn.modules.module,
    nn.utils,
    nn.utils.clip_grad,
    F,
    data,
    data.dataloader,
    data.dataloader._BaseDataLoaderIter,
    torch.utils.checkpoint,
    torch.cuda.amp.common,
    eager_transforms,
)
# What Python, torch and pytest remember in passing.
REMEMBERED = {"__slotnames__", "__abstractmethods__", "_abc_impl", "__warningregistry__"}
REMEMBERED |= {f"last_{part}" for part in ("exc", "type", "value", "traceback")}


def below(kind: type) -> list[type]:
    """Return all classes that derive from one."""
    return [inner for child in kind.__subclasses__() for inner in (child, *below(child))]


def places() -> list:
    """Return every class and module in which something may be replaced."""
    plateau = [lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau]
    derived = [*below(optimizers.Optimizer), *below(lr_scheduler.LRScheduler)]
    layers = [kind for kind in below(nn.Module) if kind.__module__.startswith("torch.")]
    return [*CLASSES, *plateau, *derived, *layers, *MODULES]


def attributes(where: list | None = None) -> dict:
    """Return every attribute of those, by place and name."""
    return {
        (place, name): value
        for place in (places() if where is None else where)
        for name, value in vars(place).items()
        if name not in REMEMBERED
    }


def hooks() -> list[int]:
    """Return how many global hooks there are of each kind."""
    names = [name for name in vars(nn.modules.module) if name.startswith("_global")]
    found = [getattr(nn.modules.module, name) for name in names]
    found += [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    return [len(each) for each in found if hasattr(each, "__len__")]
