"""The groups of processes that this one is in, and how they are told of."""

import os
from contextlib import suppress
from multiprocessing import parent_process
from typing import Any

from torch import distributed


def is_one_of_several() -> bool:
    """Say whether a launcher, or a script, has started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" or parent_process() is not None


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
