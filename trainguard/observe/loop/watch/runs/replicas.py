"""Watches what processes of one run are to have in common: the bits of parameters and buffers."""

import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from trainguard.events.base import Event
from trainguard.events.ranks import GENERATORS, ReplicaSums
from trainguard.observe.loop.watch.runs.random_numbers import RandomNumbers, state_of
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.fingerprint import sum_bits
from trainguard.observe.tools.groups import find_groups, find_shares, group_text
from trainguard.observe.tools.heap import living
from trainguard.observe.tools.local_values import is_sharded, local_values

_SUMS = 64  # at one step: of a model of more tensors, each is of several in a row
_LOOKS = 256  # steps that are kept; of more, every other one of the later ones is dropped
_FIRST = 16
_DRAWS = 64  # steps of which it is known what random numbers were drawn for them


@dataclass(slots=True)
class _Summed:
    """What is summed of one optimizer: `sums` stay on the device until the run is over."""

    window: Window
    optimizer: str = ""
    names: tuple[str, ...] = ()
    wrapper: Any = None  # a weak reference to the module that keeps its parameters alike
    replicas: str = ""
    sharded: bool = False
    lone: bool = False
    exchanged: int = 0
    sequence: tuple[int, ...] | None = ()
    generators: tuple[int, ...] = ()  # their states after the last step
    turn: int = 0  # of the loader that served the last step; at its beginning that draws too
    draws: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    sums: list[torch.Tensor] = field(default_factory=list)
    buffers: list[torch.Tensor] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)
    shares: dict[int, str] = field(default_factory=dict)  # by places among the parameters
    sizes: list[torch.Tensor] = field(default_factory=list)
    tensor: str = ""

    def held(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters that are summed: of a sharded model those that several hold."""
        if not self.sharded:
            return parameters
        return [parameters[i] for i in self.shares if i < len(parameters)]

    def keep(
        self, step: int, sums: torch.Tensor, buffers: torch.Tensor | None, state: torch.Tensor
    ) -> None:
        """Keep the sums of a step, and ever fewer of a long run: the same ones in each process."""
        self.steps.append(step)
        self.sums.append(sums)
        self.states.append(state)
        self.buffers += [buffers] if buffers is not None else []
        if len(self.steps) > _LOOKS:
            for column in (self.steps, self.sums, self.states, self.buffers):
                del column[_FIRST::2]


class Replicas(Watcher):
    """The ReplicaSums events, where several processes are in a group; nothing elsewhere."""

    makes = ("ReplicaSums",)
    relies_on = ("RandomNumbers", "Batches")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._summed: dict[int, _Summed] = {}

    def before_step(self, window: Window) -> Columns:
        """See what an optimizer holds before its first step, and who exchanged something since."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return {}
        summed = self._summed.get(id(window))
        if summed is None and window.parameters and distributed.get_world_size() > 1:
            summed = self._summed[id(window)] = self._describe(window)
            self._look(summed, window, -1)
        if summed is not None:
            sequence = _sequence()
            moved = sequence is None or sequence != summed.sequence
            summed.exchanged += window.index > 0 and moved
            summed.sequence = sequence
            if summed.generators and len(summed.draws) < _DRAWS:
                self._compare_draws(summed)
        return {}

    def after_step(self, window: Window) -> Columns:
        """Sum up what the parameters are now."""
        summed = self._summed.get(id(window))
        if summed is not None and window.is_surveyed:
            summed.optimizer = window.name
            self._look(summed, window, window.index)
        if summed is not None and len(summed.draws) < _DRAWS:
            summed.generators = _read_generators()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the sums of each optimizer."""
        for summed in self._summed.values():
            if summed.optimizer:
                yield ReplicaSums(
                    optimizer=summed.optimizer,
                    names=summed.names,
                    replicas=summed.replicas,
                    sharded=summed.sharded,
                    lone=summed.lone,
                    exchanged=summed.exchanged,
                    draws=tuple(self._keep_own(draws) for draws in summed.draws),
                    begun=any(f.training and f.gradients for f in summed.window.forwards),
                    steps=tuple(summed.steps),
                    sums=tuple(tuple(row) for row in _numbers(summed.sums)),
                    buffers=tuple(_numbers(summed.buffers)),
                    states=tuple(_numbers(summed.states)),
                    shares=tuple(summed.shares.values()),
                    sizes=tuple(map(float, summed.sizes)),
                    tensor=summed.tensor,
                )

    def _describe(self, window: Window) -> _Summed:
        """Return what an optimizer's parameters are called, and who has replicas of them."""
        wrapper = _find_wrapper(window)
        sharded = any(is_sharded(p) or _is_flat(p) for p in window.parameters)
        made = _Summed(window, sharded=sharded)
        if sharded:
            made.shares, made.tensor = find_shares(window.parameters, _SUMS)
        made.names = self._names(made.held(window.parameters))
        if wrapper is not None:
            made.wrapper = weakref.ref(wrapper)
            made.replicas = group_text(distributed.get_process_group_ranks(wrapper.process_group))
        return made

    def _compare_draws(self, summed: _Summed) -> None:
        """See what was drawn since the last step; nothing where a loader has begun, which draws."""
        served = self.recorder.watcher(Batches).recent
        before, summed.turn = summed.turn, served[-1].turn if served else 0
        drawn = _compare_states(summed.generators, _read_generators())
        summed.draws.append(drawn if before == summed.turn else (0,) * len(drawn))

    def _keep_own(self, draws: tuple[int, ...]) -> tuple[int, ...]:
        """Return what generators have drawn that the user's own lines seeded, not a library's."""
        seeded = self.recorder.watcher(RandomNumbers).seeded
        return tuple(d * (kind in seeded) for d, kind in zip(draws, GENERATORS, strict=True))

    def _names(self, parameters: list[torch.Tensor]) -> tuple[str, ...]:
        """Return what each sum is of: a parameter, or the first of several in a row."""
        names = [self.recorder.names.parameter(p) for p in parameters]
        return tuple(names[:: max(-(-len(names) // _SUMS), 1)])

    def _look(self, summed: _Summed, window: Window, step: int) -> None:
        """Sum up the bits of all parameters, and of the buffers that nobody keeps alike."""
        wrapper = summed.wrapper() if summed.wrapper is not None else None
        buffers = None
        if wrapper is not None:
            config, hooks = wrapper._join_config, getattr(wrapper, "_comm_hooks", [])  # noqa: SLF001
            averaged_late = any("local" in getattr(h, "__name__", "").lower() for h, _ in hooks)
            summed.lone = summed.lone or config.enable or averaged_late
            if not wrapper.broadcast_buffers:
                found = [sum_bits(buffer) for buffer in wrapper.buffers()]
                buffers = _fold(found, 1)
        held = summed.held(window.parameters)
        sums = _fold([sum_bits(p) for p in held], _SUMS)
        if sums is not None:
            summed.sizes = _measure(held) if summed.sharded else []
            # Every other time: states that differ make parameters differ at the next step.
            state = _sum_state(window, held if len(summed.steps) % 2 == 0 else [])
            summed.keep(step, sums, buffers[0] if buffers is not None else None, state)


def _sum_state(window: Window, held: list[torch.Tensor]) -> torch.Tensor:
    """
    Return one sum of what an optimizer keeps of its parameters; 0 where it keeps nothing.

    Nothing either where it keeps something of some that have a gradient, and not of others: each
    process of ZeroRedundancyOptimizer has the state of its own part.
    """
    optimizer = window.optimizer() if window.optimizer is not None else None
    of_each = getattr(optimizer, "state", {})
    stepped = [parameter for parameter in held if gradient_of(parameter) is not None]
    tensors: list[torch.Tensor] = []
    if all(parameter in of_each for parameter in stepped):
        slots = [value for parameter in stepped for value in of_each[parameter].values()]
        tensors = [value for value in slots if isinstance(value, torch.Tensor)]
    total = _fold([sum_bits(tensor) for tensor in tensors], 1)
    return torch.zeros((), dtype=torch.int64) if total is None else total[0]


def _find_wrapper(window: Window) -> DistributedDataParallel | None:
    """Return what makes replicas of an optimizer's parameters, or of some of them."""
    held = {id(parameter) for parameter in window.parameters}
    for wrapper in living(DistributedDataParallel):
        whole = not getattr(wrapper, "parameters_to_ignore", None)  # else its user sees to some
        if whole and any(id(parameter) in held for parameter in wrapper.parameters()):
            return wrapper  # type: ignore[no-any-return]
    return None


def _read_generators() -> tuple[int, ...]:
    """Return a number for the state of each generator."""
    return tuple(state_of(kind) or 0 for kind in GENERATORS)


def _compare_states(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    """Return a number for what each generator has drawn; 0 where it has drawn nothing."""
    return tuple(
        0 if a == b else crc32(b"%d %d" % (a, b)) for a, b in zip(before, now, strict=True)
    )


def _fold(sums: list[torch.Tensor | None], most: int) -> torch.Tensor | None:
    """Return at most so many sums, each of several in a row; None where there are none at all."""
    known = [total for total in sums if total is not None]
    if not known:
        return None
    zero = torch.zeros_like(known[0])
    device = zero.device
    each = torch.stack([(zero if s is None else s).to(device) for s in sums])
    size = -(-len(sums) // most)
    if size == 1:
        return each
    weighted: Any = each * (torch.arange(len(sums), device=device) * 2 + 1)
    return torch.stack([part.sum() for part in weighted.split(size)])


def _measure(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the norms of parameters as this process holds them, still on their devices."""
    values = [torch.zeros(1) if (v := local_values(p)) is None else v for p in parameters]
    return [torch.linalg.vector_norm(v.float()) for v in values]


def _numbers(kept: list[torch.Tensor]) -> list[Any]:
    """Fetch all that was kept, at once where it can be."""
    if len({(tensor.shape, tensor.device) for tensor in kept}) == 1:
        fetched: list[Any] = torch.stack(kept).tolist()
        return fetched
    return [tensor.tolist() for tensor in kept]


def _sequence() -> tuple[int, ...] | None:
    """Return how many exchanges the groups of this process have made, where they count them."""
    with suppress(Exception):  # groups of other makers do not count
        made = tuple(g._get_sequence_number_for_group() for g in find_groups())  # noqa: SLF001
        return made or None
    return None


def _is_flat(parameter: torch.Tensor) -> bool:
    """Say whether a parameter is the flat one of FSDP, of which each process has a part."""
    return type(parameter).__name__ == "FlatParameter"
