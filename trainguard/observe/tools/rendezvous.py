"""The store of torchrun, to which processes on several machines say what they have to say."""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from torch import distributed

_PATIENCE = timedelta(seconds=10)  # until a store answers that is there


class AgentStore:
    """
    A connection of our own to the store that torchrun keeps for longer than its processes live.

    Raises an error of torch where there is none: nothing is ever asked of the script's own groups.
    """

    def __init__(self) -> None:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise ConnectionError("no launcher keeps a store")
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        ours: Any = distributed
        store = ours.TCPStore(host, port, None, False, _PATIENCE, wait_for_workers=False)
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = ours.PrefixStore(f"trainguard/{again}", store)

    def stand(self, rank: int, place: str) -> None:
        """Say where a process waits for others, or by nothing that it no longer does."""
        self._store.set(f"stands {rank}", place)

    def standing(self, ranks: Iterable[int]) -> set[int]:
        """Return which processes wait for others."""
        told = [(rank, f"stands {rank}") for rank in ranks]
        return {rank for rank, key in told if self._store.check([key]) and self._store.get(key)}

    def hand_over(self, rank: int) -> None:
        """Say which process tells of all in the place of the first one."""
        self._store.set("handed", str(rank))

    def handed(self) -> int:
        """Return which process is to tell of all in the place of the first one; 0 for none."""
        return int(self._store.get("handed")) if self._store.check(["handed"]) else 0

    def put(self, rank: int, text: str) -> None:
        """Say something, once."""
        self._store.set(str(rank), text)

    def read(self, rank: int) -> str | None:
        """Return what a process has said, which stays: who reads may hand over; None: nothing."""
        if not self._store.check([str(rank)]):
            return None
        said: bytes = self._store.get(str(rank))
        return said.decode()
