"""What processes add up in dtypes of few bits: the values before and after."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.ranks import FEW_VALUES, Reduction

_FUNCTIONS = {"all_reduce": "tensor", "reduce_scatter_tensor": "input"}
_HALVES = (torch.float16, torch.bfloat16)
_NARROW = (*_HALVES, torch.uint8, torch.int8, torch.int16, torch.int32)
_DENSE = 16  # calls of one line that are all looked at; of later ones every power of two is
_KINDS = 64


@dataclass(slots=True)
class _ReductionLog:
    """The calls of one line: tensors stay on the device until the run is over."""

    count: int = 0
    places: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def add(self, place: int, step: int, value: torch.Tensor) -> None:
        """Keep what a call was given."""
        self.places.append(place)
        self.steps.append(step)
        self.inputs.append(value)


class ReducedValues:
    """Looks at the few values, or at the largest of many, that are added up over processes."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str, str], _ReductionLog] = {}

    def begin(
        self,
        function: str,
        given: Mapping[str, Any],
        key: tuple[str, str, str],
        at: tuple[int, int],
    ) -> tuple[_ReductionLog, torch.Tensor] | None:
        """
        Keep what a call is given; return what to look at when it is over, if anything.

        key: its group, how it is told, and its line. at: its number, and that of the step.
        """
        value = given.get(_FUNCTIONS.get(function, ""))
        if not isinstance(value, torch.Tensor) or value.dtype not in _NARROW:
            return None
        few = value.numel() <= FEW_VALUES
        if few and (given.get("async_op") or function != "all_reduce"):
            return None
        if not (few or value.dtype is torch.float16) or not value.numel():
            return None
        if len(self._logs) >= _KINDS and key not in self._logs:
            return None
        log = self._logs.setdefault(key, _ReductionLog())
        log.count += 1
        if log.count > _DENSE and log.count & (log.count - 1):
            return None
        with torch.no_grad():
            log.add(*at, value.detach().clone() if few else value.detach().abs().amax())
        return (log, value) if few else None

    def end(self, begun: tuple[_ReductionLog, torch.Tensor]) -> None:
        """Keep what has become of the values of a call."""
        log, value = begun
        log.outputs.append(value.detach().clone())

    def tell(self) -> Iterator[Reduction]:
        """Yield what was added up at each line."""
        for (group, kind, line), log in self._logs.items():
            yield Reduction(
                group=group,
                kind=kind,
                source=line,
                places=tuple(log.places),
                steps=tuple(log.steps),
                inputs=tuple(map(_numbers, log.inputs)),
                outputs=tuple(map(_numbers, log.outputs)),
            )


def _numbers(tensor: torch.Tensor) -> tuple[float, ...]:
    """Return the values of a tensor."""
    return tuple(map(float, tensor.flatten().tolist()))
