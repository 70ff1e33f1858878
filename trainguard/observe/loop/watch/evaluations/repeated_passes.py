"""Watches passes over one input that are made again and again with dropout asleep, and kept."""

import gc
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import has_rows, local_values, start_of
from trainguard.observe.tools.module_names import unwrap
from trainguard.observe.tools.user_line import caller, forward_of, user_frames, variables_of

_LEAST = 5  # passes over one input: fewer are a check that they are the same, or a warm-up
_MOST = 4096  # inputs between two steps
_LOOKS = 4  # at all lists that there are, each of which takes a tenth of a second at most
_SAMPLED = 64  # elements that tell one input from another
_NEAR = 3  # frames of the user's code, in whose variables tables are looked for
_FRACTIONS = (np.float16, np.float32, np.float64)
_DROPOUT = nn.modules.dropout._DropoutNd  # noqa: SLF001 what all of them derive from


class RepeatedPasses(Watcher):
    """
    The Probe event "repeated": passes in evaluation mode whose results are kept, and are all one.

    The input comes five times and more to a model that drops nothing, but would in training mode,
    with no step between. A list or table has one more entry after each pass, and all of them are
    the same to the last bit: nobody keeps the same thing again and again on purpose.
    """

    makes = ("Probe:repeated",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._step, self._looks = -1, 0
        self._drops: dict[str, bool] = {}  # whether a module has dropout
        self._passes: Counter[Hashable] = Counter()
        self._key: Hashable = None  # the input of which it is looked what is kept
        self._kept: set[int] = set()
        self._found: dict[str, Any] = {}

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Count a pass over an input; look at what is kept when it comes again and again."""
        if forward.training or (self._looks >= _LOOKS and not self._found):
            return
        if forward.module not in self._drops:
            self._drops[forward.module] = _has_dropout(unwrap(module))
        if not self._drops[forward.module]:
            return
        if self._step != self.recorder.steps:
            if self._found:
                return
            self._step, self._key = self.recorder.steps, None
            self._passes.clear()
        key = (forward.module, *map(_mark, self.recorder.given))
        if len(key) < 2 or (key not in self._passes and len(self._passes) >= _MOST):
            return
        self._passes[key] += 1
        if self._found or self._passes[key] < _LEAST:
            return
        if self._key is None:
            self.looked.add("repeated")
            self._key, self._kept = key, self._look(key, output)
        elif key == self._key and self._kept and self._kept & self._look(key, output):
            self._found = {"step": forward.step, "label": forward.module, "source": caller()}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._found:
            yield make_probe("repeated", self._passes[self._key], **self._found)

    def _look(self, key: Hashable, output: Any) -> set[int]:
        """Return the ids of what has one entry for each pass before this one, all of them alike."""
        if self._looks >= _LOOKS:
            return set()
        self._looks += 1
        passes, own = self._passes[key] - 1, _number_in(output)
        held = [each for each in gc.get_objects() if type(each) in (list, deque)]
        found = {id(each) for each in held if len(each) == passes and _are_alike([*each], own)}
        for frame in user_frames(_NEAR):
            for value in variables_of(frame).values():
                table = _read(value)
                if table is None or not table.dim() or len(table) <= passes:
                    continue
                rows = [table[place] for place in range(passes + 1)]
                if _are_alike(rows[:-1], own) and not _are_equal(rows[-1], rows[0]):
                    found.add(id(value))
        return found


def _mark(tensor: torch.Tensor) -> Hashable:
    """Return what tells an input from others: some values, or on a device which object it is."""
    if tensor.is_cpu and has_rows(tensor):
        return tuple(tensor.shape), tuple(sample_elements(tensor, _SAMPLED).tolist())
    return id(tensor), tensor._version  # noqa: SLF001 there is no public one


def _has_dropout(module: nn.Module) -> bool:
    """Say whether something in a module drops elements at random, when it is awake."""
    for part in module.modules():
        is_one = isinstance(part, _DROPOUT)
        share = getattr(part, "p" if is_one else "dropout", 0)
        if isinstance(share, float) and share > 0:
            return True
        names = getattr(getattr(forward_of(part), "__code__", None), "co_names", ())
        if "dropout" in names and not is_one and not hasattr(part, "dropout"):  # the function
            return True
    return False


def _are_alike(entries: Sequence[Any], own: float | None) -> bool:
    """Say whether entries are all the same, each in its own memory: `own` where one is a number."""
    if type(entries[0]) not in (float, np.ndarray, torch.Tensor):  # isinstance may wake a proxy
        return False
    read = [_read(each) for each in entries]
    values = [each for each in read if each is not None and each.numel()]
    if len(values) < len(entries) or not all(_are_equal(each, values[0]) for each in values):
        return False
    if values[0].numel() == 1:
        return own is not None and float(values[0]) == own
    places = {start_of(each) for each in values}
    return len(places) == len(values) and not _are_equal(values[0], values[0].reshape(-1)[0])


def _read(value: Any) -> torch.Tensor | None:
    """Return numbers with fractions as a tensor; None of all else."""
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64)
    if type(value) is np.ndarray and value.dtype in _FRACTIONS:
        return torch.from_numpy(value) if value.flags.carray else None
    if type(value) is torch.Tensor and value.is_floating_point():
        return local_values(value) if has_rows(value) else None
    return None


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether numbers are the same; the other may be one for all."""
    fits = one.shape == other.shape or not other.dim()
    return fits and one.device == other.device and bool((one == other).all())


def _number_in(output: Any) -> float | None:
    """Return an output that is a single number."""
    single = isinstance(output, torch.Tensor) and output.numel() == 1 and output.is_cpu
    return float(output.detach()) if single else None
