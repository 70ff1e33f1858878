"""The groups of processes that this one is in, and how they are told of."""

import os
from contextlib import suppress
from multiprocessing import parent_process
from typing import Any

import torch
from torch import distributed

from trainguard.observe.tools.heap import living


def is_one_of_several() -> bool:
    """Say whether a launcher, or a script, has started this process as one of several."""
    # Under srun it is the script that makes RANK and WORLD_SIZE of Slurm's variables, later.
    told = (os.environ.get(name, "1") for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    return any(count != "1" for count in told) or parent_process() is not None


def find_groups() -> list[Any]:
    """Return the groups that this process is in."""
    with suppress(Exception):  # groups of other makers, or none
        return [*distributed.distributed_c10d._world.pg_map]  # noqa: SLF001
    return []


def group_text(ranks: list[int]) -> str:
    """Write the ranks of a group, "0:8:2" as a slice: each of thousands of processes tells it."""
    pace = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if pace > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, pace)):
        return f"{ranks[0]}:{ranks[-1] + 1}:{pace}"
    return ",".join(map(str, ranks))


def timeout_of(group: Any) -> float:
    """Return after how many seconds a group gives up; 0 where it does not say."""
    with suppress(Exception):  # what a group keeps depends on who made it
        for device in group._device_types:  # noqa: SLF001
            return float(group._get_backend(device).options._timeout.total_seconds())  # noqa: SLF001
    return 0.0


def find_shares(parameters: list[torch.Tensor], most: int) -> tuple[dict[int, str], str]:
    """
    Return who holds the same of each parameter that several processes hold, and a tensor group.

    By their places; those that are no distributed tensors say "plain" behind the ranks of the mesh
    of all others. A tensor group is the mesh of parameters that no sharding of data has made.
    """
    shares: dict[int, str] = {}
    meshes = {id(m): m for p in parameters if (m := getattr(p, "device_mesh", None)) is not None}
    mesh: Any = next(iter(meshes.values())) if len(meshes) == 1 else None
    divides = mesh is not None and mesh.ndim == 1 and not _is_data_sharded(parameters)
    group = group_text(mesh.mesh.flatten().tolist()) if divides else ""
    for place, parameter in enumerate(parameters):
        if hasattr(parameter, "device_mesh"):
            ranks = _find_holders(parameter)
            if len(ranks) > 1 and len(shares) < most:
                shares[place] = group_text(ranks)
        elif group and len(shares) < most:
            shares[place] = f"{group} plain"
    return shares, group


def _find_holders(parameter: Any) -> list[int]:
    """Return the ranks that hold the same part of a distributed tensor as this one."""
    mesh, places = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    if places is None:
        return []
    index = tuple(
        slice(None) if placement.is_replicate() else place
        for placement, place in zip(parameter.placements, places, strict=True)
    )
    return list(mesh.mesh[index].flatten().tolist())


def _is_data_sharded(parameters: list[torch.Tensor]) -> bool:
    """Say whether fully_shard manages some of the parameters; before torch 2.6 nobody can say."""
    kind = getattr(getattr(distributed, "fsdp", None), "FSDPModule", None)
    if kind is None:
        return False
    own = {id(parameter) for parameter in parameters}
    return any(id(p) in own for module in living(kind) for p in module.parameters())
