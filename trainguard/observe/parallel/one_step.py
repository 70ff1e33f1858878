"""One process of several, or of one: its part of a batch, its step, and what came of it."""

import io
import os
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from trainguard.observe.parallel.splits import BatchSplit
from trainguard.observe.tools.devices import module_of
from trainguard.observe.tools.isolation import seed_everything
from trainguard.subjects.domain import BATCH
from trainguard.subjects.model_inputs import forward_inputs
from trainguard.subjects.parallel import Parallel
from trainguard.subjects.subject import parameters

Batch = dict[str, Any]
Outcome = dict[str, Any]
_RATE = 0.1  # of the optimizer where none is declared; what SGD does with a gradient is linear
_BUILT = 0  # the seed that all are built with


def step_in_group(subject: Parallel, batches: list[tuple[BatchSplit, Batch]], seed: int) -> bytes:
    """Join the group, make one step of a new model with each batch, and return what came of it."""
    device = _take_device(subject.devices)
    backends = getattr(dist.Backend, "default_device_backend_map", {"cuda": "nccl"})
    dist.init_process_group(backends.get(device.type, "gloo"))
    rank, world = dist.get_rank(), dist.get_world_size()
    cut = [_cut(subject, each, rank, world) for each in batches]
    outcomes = [_make(subject, _move(batch, device), seed, device) for batch in cut]
    dist.barrier()  # nobody leaves while another one may wait for it
    file = io.BytesIO()
    torch.save(outcomes, file)
    return file.getvalue()


def _cut(subject: Parallel, split: tuple[BatchSplit, Batch], rank: int, world: int) -> Batch:
    """Return the rows of the batch that are for one process."""
    rows, own = split[0].rows[world], dict(split[1])
    part = rank // subject.count_alike(world)
    for name, domain in subject.tensors.items():
        if BATCH in domain.names:
            along = (domain.shape or ()).index(BATCH)
            own[name] = own[name].split(rows, along)[part].clone()
    return own


def _take_device(kind: str) -> torch.device:
    """Return the device of this process, which is from now on the current one of its type."""
    if kind == "cpu":
        return torch.device(kind)
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    getattr(module_of(kind), "set_device", lambda _: None)(device)
    return device


def _move(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on a device."""
    return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in batch.items()}


def _make(subject: Parallel, batch: Batch, seed: int, device: torch.device) -> Outcome:
    """Build, wrap and train for one step."""
    seed_everything(_BUILT)
    module = subject.build()
    if device.type != "cpu":
        module.to(device)
    model = _wrap(subject, module)
    optimizer = (subject.optimizer or _make_usual)(model.parameters())
    named = dict(model.named_parameters())
    with _put_together(model):
        before = {name: _assemble(parameter) for name, parameter in named.items()}
    fed = forward_inputs(module, subject.loss, batch)
    dtypes = {parameter.dtype for parameter in named.values()}
    dtypes.update(*map(_find_reduced, model.modules()))
    for each in module.modules():
        each.register_forward_hook(lambda _module, _inputs, output: _add_dtype(output, dtypes))
    seed_everything(seed)
    if subject.step is not None:
        loss = subject.step(model, batch)
    else:
        assert subject.loss is not None, "the declaration is refused without both"
        output = model(**{name: batch[name] for name in batch if name in fed})
        taken = parameters(subject.loss)
        loss = subject.loss(output, **{n: batch[n] for n in batch if taken is None or n in taken})
        loss.backward()
    with _put_together(model):
        gradients = {name: _read_gradient(parameter) for name, parameter in named.items()}
    optimizer.step()
    with _put_together(model):
        updates = {name: _assemble(named[name]) - before[name] for name in named}
    return {
        "loss": 0.0 if loss is None else float(loss),  # it is summed up: that of another stage
        "gradients": gradients,
        "updates": updates,
        "parameters": before,
        "precision": max(torch.finfo(d).eps for d in dtypes if d.is_floating_point),
        "sharded": any(hasattr(parameter, "full_tensor") for parameter in named.values()),
        "lone_statistics": any(map(_takes_own_statistics, model.modules())),
    }


def _wrap(subject: Parallel, module: nn.Module) -> nn.Module:
    """Return what is trained."""
    if subject.wrap == "ddp":
        return DistributedDataParallel(module)
    if subject.wrap == "fully_shard":
        from torch.distributed.fsdp import fully_shard  # late: torch before 2.6 has none

        holders = Counter(p for child in module.children() for p in child.parameters())
        for child in module.children():
            own = [holders[p] for p in child.parameters()]
            if own and max(own) == 1 and not isinstance(child, nn.ModuleList | nn.ModuleDict):
                fully_shard(child)  # what is tied to another one is for the outermost
        fully_shard(module)
        return module
    wrapped: nn.Module = subject.wrap(module) if callable(subject.wrap) else module
    return wrapped


def _make_usual(parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer where none is declared."""
    return torch.optim.SGD(parameters, lr=_RATE)


def _read_gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter; zeros where it has none."""
    if parameter.grad is None:
        return torch.zeros_like(_assemble(parameter))
    return _assemble(parameter.grad)


def _assemble(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in double precision, put together from the parts of all ranks."""
    full = getattr(tensor, "full_tensor", None)
    whole: Tensor = tensor if full is None else full()
    return whole.detach().to_dense().cpu().to(torch.float64, copy=True)


def _add_dtype(output: object, dtypes: set[torch.dtype]) -> None:
    """Add the dtype that a module computes in: that of its output, under autocast as well."""
    if isinstance(output, Tensor) and output.is_floating_point():
        dtypes.add(output.dtype)


def _put_together(model: nn.Module) -> AbstractContextManager[Any]:
    """Put the parameters and gradients of FSDP1 together in a block; flat ones stay in parts."""
    flat = [m for m in model.modules() if isinstance(m, FullyShardedDataParallel)]
    if not flat or not all(getattr(each, "_use_orig_params", False) for each in flat):
        return nullcontext()
    return FullyShardedDataParallel.summon_full_params(model, writeback=False, with_grads=True)


def _find_reduced(module: Any) -> set[torch.dtype]:
    """Return the dtypes that a wrapper reduces gradients in, which may round more than the step."""
    hooks = {getattr(hook, "__name__", "") for hook, _ in getattr(module, "_comm_hooks", ())}
    dtypes = {torch.float16} if "fp16_compress_hook" in hooks else set()
    if hasattr(module, "_get_fsdp_state"):
        policy = getattr(module._get_fsdp_state(), "_mp_policy", None)  # noqa: SLF001
        dtypes.add(getattr(policy, "reduce_dtype", None) or torch.float32)
    return dtypes


def _takes_own_statistics(module: nn.Module) -> bool:
    """Say whether a module normalises by statistics of the rows that its process has."""
    alone = isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    return alone and module.training
