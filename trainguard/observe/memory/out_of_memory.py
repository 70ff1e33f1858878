"""What is raised where memory runs out: by us before a machine is full, by torch, by Python."""

import re
from dataclasses import dataclass

import torch

from trainguard.observe.memory.allocation_log import Exhausted

# torch's allocators say in words how much they were asked for.
_ASKED = re.compile(r"tried to allocate ([\d.]+) ([KMG]iB|bytes)", re.IGNORECASE)
_SIZES = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_IN_WORDS = ("DefaultCPUAllocator", "out of memory")


@dataclass(frozen=True)
class Stop:
    """
    Why a step was not made to its end.

    refused: whether the allocator refused, and not we. held: the bytes that were held then. asked:
    those that the allocator was asked for in vain, as far as it says.
    """

    refused: bool
    held: int
    asked: int = 0

    @property
    def least(self) -> int:
        """The bytes that the step takes at the least."""
        return self.held + self.asked


def stop_of(error: BaseException, held: int) -> Stop | None:
    """
    Return why a step was stopped for want of memory; None where it was for something else.

    held: what it held when it was, which the error's traceback keeps alive.
    """
    chain = _chain(error)
    if any(isinstance(one, Exhausted) for one in chain):
        return Stop(refused=False, held=held)
    refusal = next((one for one in chain if _says_so(one)), None)
    return None if refusal is None else Stop(refused=True, held=held, asked=_parse_asked(refusal))


def _parse_asked(error: BaseException) -> int:
    """Return how many bytes were asked for in vain, as far as the error says."""
    found = _ASKED.search(str(error))
    return 0 if found is None else round(float(found[1]) * _SIZES[found[2].lower()])


def _says_so(error: BaseException) -> bool:
    """Say whether an error is about memory: by its kind, or where it has none by its words."""
    kinds = (MemoryError, torch.cuda.OutOfMemoryError)
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _IN_WORDS)


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and what it was raised from."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
