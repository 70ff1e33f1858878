"""A ledger of tensors on several devices: what counts is the accelerator, where one is used."""

from typing import Any

from torch import Tensor

from trainguard.observe.memory.allocation_log import AllocationLog


class DeviceAllocationLog(AllocationLog):  # type: ignore[no-untyped-call]
    """
    A ledger that knows on which kind of device each storage is.

    devices: the kind of each of its entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []

    def enter(self, tensor: Tensor, func: Any = None) -> int:
        """Enter the storage of a tensor, and its device where it is new."""
        number = super().enter(tensor, func)
        if number == len(self.devices):
            self.devices.append(tensor.device.type)
        return number

    def of_one_device(self) -> tuple[str, AllocationLog]:
        """Return the kind of device that counts, and what is on it: not the cpu, if another is."""
        others = [device for device in self.devices if device != "cpu"]
        chosen = others[0] if others else "cpu"
        kept = AllocationLog()
        kept.entries = self.entries
        kept.changes = [c for c in self.changes if self.devices[c.entry] == chosen]
        return chosen, kept
