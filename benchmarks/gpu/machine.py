"""The accelerator that is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from trainguard.observe.tools.devices import module_of

Row = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """The accelerator that is measured, and whether it is only simulated: then all is small."""

    device: str
    simulated: bool = False

    @property
    def kind(self) -> str:
        """Its type."""
        return self.device.partition(":")[0]

    @property
    def module(self) -> Any:
        """`torch.cuda`, or its like."""
        return module_of(self.kind)

    def time(self, work: Callable[[], object]) -> float:
        """Return how long a piece of work takes until the device is done with it."""
        self.module.synchronize()
        started = perf_counter()
        work()
        self.module.synchronize()
        return perf_counter() - started


def attempt(row: Row, work: Callable[[], Row]) -> Row:
    """Return a row with what a piece of work adds to it, or with why it failed."""
    try:
        return row | work()
    except Exception as error:  # noqa: BLE001 the next row is worth having all the same
        return row | {"failed": f"{type(error).__name__}: {error}"[:400]}
