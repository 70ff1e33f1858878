"""What watchers want to know of tensors on an accelerator, read with the columns of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainguard.observe.loop.deferred import to_host
from trainguard.observe.loop.faults import Faults
from trainguard.observe.tools.fingerprint import checksums, sum_bits

if TYPE_CHECKING:
    from trainguard.observe.loop.watch.watcher import Watcher

_MOST = 2**24  # bytes that wait: as much as a small layer, and read in some milliseconds
Take = Callable[[list[torch.Tensor]], None]
TakeSums = Callable[[list[int | None]], None]
Ask = Callable[[Sequence[torch.Tensor], Take], None]


@dataclass(frozen=True, slots=True)
class _Request:
    """Tensors that nobody changes any more, and what of a watcher is told of them on the host."""

    watcher: "Watcher"
    tensors: Sequence[torch.Tensor]
    take: Take


class Reads:
    """
    What is asked for and has not come yet.

    Each read of an accelerator is waited for. So all that is wanted waits on the device, and comes
    in the transfer that is made for the columns of a step, one step later. What is in the memory
    of the host is told at once. A watcher is told in the order in which it has asked.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._waiting: list[_Request] = []
        self._bytes = 0
        self._over = False  # the run is over: there will be no other transfer

    def ask(self, watcher: "Watcher", tensors: Sequence[torch.Tensor], take: Take) -> None:
        """
        Have what a watcher wants to know told, at once or with the numbers of a later step.

        tensors: they must not change any more. take: must keep nothing of the training alive.
        """
        if any(tensor.is_meta for tensor in tensors):
            return  # it has no numbers, and what is told of the rest would be half of it
        away = any(not tensor.is_cpu for tensor in tensors)
        if not away and not any(request.watcher is watcher for request in self._waiting):
            take(list(tensors))
            return
        self._waiting.append(_Request(watcher, tensors, take))
        self._bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self._over or self._bytes > _MOST:
            self.read_with([])

    def ask_checksums(
        self, watcher: "Watcher", tensors: Sequence[torch.Tensor], take: TakeSums
    ) -> None:
        """Have the checksums of tensors told, as they are now; None for one that has no bits."""
        if not self._waiting and all(tensor.is_cpu for tensor in tensors):
            take(checksums(tensors))
            return
        sums = [sum_bits(tensor) for tensor in tensors]
        own = {i: total for i, total in enumerate(sums) if total is not None and _has(total)}

        def told(here: list[torch.Tensor]) -> None:
            """Put each checksum in its place."""
            found = dict(zip(own, map(int, here), strict=True))
            take([found.get(place) for place in range(len(tensors))])

        self.ask(watcher, list(own.values()), told)

    def read_with(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies of tensors on the host, and tell of all that waits, in one transfer."""
        requests, self._waiting, self._bytes = self._waiting, [], 0
        wanted = [tensor for request in requests for tensor in request.tensors]
        try:
            here = to_host([*tensors, *wanted])
        except Exception:  # noqa: BLE001 it is found out below which one it was
            for request in requests:
                self._faults.call(request.watcher, _tell_alone, request)
            return to_host(tensors)
        rest = iter(here[len(tensors) :])
        for request in requests:
            own = [next(rest) for _ in request.tensors]
            self._faults.call(request.watcher, request.take, own)
        return here[: len(tensors)]

    def end(self) -> None:
        """Tell of all that waits, and from now on at once: the run is over."""
        self._over = True
        if self._waiting:
            self.read_with([])


def tell(tensors: Sequence[torch.Tensor], take: Take) -> None:
    """Have tensors told at once, wherever they are."""
    take(to_host(tensors))


def _has(total: torch.Tensor) -> bool:
    """Say whether a tensor has numbers: a fake one has none, nor one on the meta device."""
    return type(total) is torch.Tensor and not total.is_meta


def _tell_alone(request: _Request) -> None:
    """Read what one watcher has asked for by itself."""
    tell(request.tensors, request.take)
