"""Watches what a process of several asks of its groups: the order of calls, and their timeouts."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from typing import Any
from zlib import crc32

import torch
from torch import distributed

from trainguard.events.base import Event
from trainguard.events.ranks import FIRST_CALLS, LAST_CALLS, MOST_MARKS, GroupCalls
from trainguard.observe.loop.watch.runs.reduced_values import ReducedValues
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.groups import find_groups, group_text, is_one_of_several, timeout_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

# What of each function has to be alike in all processes of a group: the tensor whose dtype and
# number of elements are told, or with a minus its dtype alone; what a reduction does; its root.
_KINDS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("tensor", "op"),
    "all_reduce_coalesced": ("", "op"),
    "broadcast": ("tensor", "src"),
    "reduce": ("tensor", "op", "dst"),
    "all_gather": ("-tensor",),
    "all_gather_coalesced": ("",),
    "all_gather_into_tensor": ("input_tensor",),
    "all_gather_single": ("input_tensor",),
    "reduce_scatter": ("-output", "op"),
    "reduce_scatter_tensor": ("output", "op"),
    "reduce_scatter_single": ("output", "op"),
    "gather": ("-tensor", "dst"),
    "scatter": ("-tensor", "src"),
    "all_to_all": ("",),
    "all_to_all_single": ("-output",),
    "barrier": ("",),
    "monitored_barrier": ("",),
    "all_gather_object": ("",),
    "broadcast_object_list": ("", "src"),
    "gather_object": ("", "dst"),
    "scatter_object_list": ("", "src"),
}
_ALIASES = {"all_gather_single": "all_gather_into_tensor"}
_ALIASES |= {"reduce_scatter_single": "reduce_scatter_tensor"}
_MAKERS = ("init_process_group", "new_group")
_GROUPS = 64  # that are told of
_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values()
           if isinstance(dtype, torch.dtype)}  # fmt: skip


@dataclass(slots=True)
class _GroupLog:
    """
    The calls of one group: the first ones, the last ones, and of those between sums at marks.

    stride: how many calls are from one mark to the next; doubled as they grow too many.
    """

    group: str
    timeout: float = 0.0
    source: str = ""
    count: int = 0
    total: int = 0
    stride: int = 1
    known: dict[tuple[str, str], int] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    first: list[tuple[int, int]] = field(default_factory=list)
    last: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=LAST_CALLS))
    marks: list[int] = field(default_factory=list)

    def add(self, text: str, step: int) -> None:
        """Take down one call."""
        self.count += 1
        early = self.count <= FIRST_CALLS
        # To look for the line takes longer than all else: of later calls it is the first such.
        line = caller(3) if early or text not in self.lines else self.lines[text]
        self.lines.setdefault(text, line)
        kind = self.known.setdefault((text, line), len(self.known))
        if early:
            self.first.append((kind, step))
        self.last.append((kind, step))
        self.total = crc32(text.encode(), self.total)
        if self.count % self.stride == 0:
            self.marks.append(self.total)
            if len(self.marks) > MOST_MARKS:
                del self.marks[::2]
                self.stride *= 2


class Collectives(Watcher):
    """The GroupCalls and Reduction events, where a launcher, or a script, has started processes."""

    makes = ("GroupCalls", "Reduction")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._logs: dict[str, _GroupLog] = {}
        self._names: dict[str, str] = {}  # of groups by what torch calls them
        self._made: dict[str, str] = {}  # where each was made
        self._inside = threading.local()
        self.under_way: str | None = None  # the call that is not over yet
        self._values = ReducedValues()
        self._begun: Any = None  # what is to be looked at when the call is over
        self._met = 0  # groups, when they were looked at last
        self._listens = False  # a process that starts the others itself is heard too late

    def install(self, patches: Patches) -> None:
        """Listen to the functions of torch.distributed, in both of the modules that have them."""
        if not (distributed.is_available() and is_one_of_several()):
            return
        import torch.distributed._functional_collectives  # noqa: F401 it keeps the original ones

        self._listens = True
        home: Any = distributed.distributed_c10d
        for name in (*_KINDS, *_MAKERS):
            if hasattr(distributed, name):
                listen = self._listen if name in _KINDS else self._find_line
                wrapper = listen(getattr(distributed, name), name)
                for owner in (distributed, home):
                    patches.replace(owner, name, partial(_choose, wrapper))

    def before_step(self, window: Window) -> Columns:
        """See which groups there are, as they may be gone when the run ends."""
        groups = find_groups() if self._listens else ()
        if len(groups) != self._met:
            self._met = len(groups)
            for group in groups:
                self._log_of(group)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was asked of each group."""
        for log in self._logs.values():
            yield GroupCalls(
                group=log.group,
                timeout=log.timeout,
                source=log.source,
                count=log.count,
                kinds=tuple(text for text, _ in log.known),
                lines=tuple(line for _, line in log.known),
                first=tuple(kind for kind, _ in log.first),
                first_steps=tuple(step for _, step in log.first),
                last=tuple(kind for kind, _ in log.last),
                last_steps=tuple(step for _, step in log.last),
                stride=log.stride,
                marks=tuple(log.marks),
            )
        yield from self._values.tell()

    def _listen(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a collective function that tells of its outermost calls."""
        names, kind = tuple(signature(call).parameters), _ALIASES.get(name, name)
        patches, inside, compiling = (
            self.recorder.patches,
            self._inside,
            torch.compiler.is_compiling,
        )

        @wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Call it, and tell of that first: it may never come back."""
            if compiling() or not patches.active or getattr(inside, "one", False):
                return call(*args, **kwargs)
            self.under_way = self._take(
                kind, name, {**dict(zip(names, args, strict=False)), **kwargs}
            )
            begun, self._begun, inside.one = self._begun, None, True
            try:
                result = call(*args, **kwargs)
            finally:
                inside.one, self.under_way = False, None
            if begun is not None:
                self._end(begun)
            return result

        return wrapper

    def _find_line(self, make: Callable[..., Any], _name: str) -> Callable[..., Any]:
        """Return a function that makes a group, and tells where that was."""

        @wraps(make)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Make the group."""
            made = make(*args, **kwargs)
            if self.recorder.patches.active:
                self._note_line(made)
            return made

        return wrapper

    @shielded
    def _note_line(self, made: Any) -> None:
        """Remember where a group was made; the first one is returned by nobody."""
        group = made if made is not None else distributed.group.WORLD
        name = getattr(group, "group_name", None)
        if name is not None:
            self._made.setdefault(name, caller(2))

    @shielded
    def _take(self, kind: str, name: str, given: Mapping[str, Any]) -> str:
        """Take down a call, and return how it is told."""
        group = given.get("group") or distributed.group.WORLD
        log = self._log_of(group) if isinstance(group, distributed.ProcessGroup) else None
        if log is None:
            return kind
        text = _text(kind, _KINDS[name], given, group)
        log.add(text, self.recorder.steps)
        _, line = [*log.known][log.last[-1][0]]
        at = (log.count, self.recorder.steps)
        self._begun = self._values.begin(kind, given, (log.group, text, line), at)
        return text

    @shielded
    def _end(self, begun: Any) -> None:
        """See what has become of the values of a call that is over."""
        self._values.end(begun)

    def _log_of(self, group: Any) -> _GroupLog | None:
        """Return the log of a group that this process is in."""
        name = self._names.get(group.group_name)
        if name is None and len(self._names) < _GROUPS:
            with suppress(Exception):  # no group that torch knows
                ranks = distributed.get_process_group_ranks(group)
                name = self._names[group.group_name] = f"{group_text(ranks)} {group.group_name}"
        if name is None:
            return None
        log = self._logs.get(name)
        if log is None:
            made = self._made.get(group.group_name, "")
            log = self._logs[name] = _GroupLog(name, timeout_of(group), made)
        return log


def _choose(made: Callable[..., Any], _original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function, the same one in both of its modules."""
    return made


def _text(kind: str, shared: tuple[str, ...], given: Mapping[str, Any], group: Any) -> str:
    """Write what of a call has to be alike: "all_reduce of 16 float32, SUM"."""
    what, *more = shared
    tensor = given.get(what.removeprefix("-"))
    text = kind
    if isinstance(tensor, torch.Tensor):
        dtype = _DTYPES.get(tensor.dtype, "")
        text += f" of {dtype}" if what.startswith("-") else f" of {tensor.numel()} {dtype}"
    for name in more:
        text += f", {_root(name, given, group)}" if name != "op" else f", {_operation(given)}"
    return text


def _operation(given: Mapping[str, Any]) -> str:
    """Return what a reduction does: "SUM"."""
    return str(given.get("op", distributed.ReduceOp.SUM)).rpartition(".")[2]


def _root(name: str, given: Mapping[str, Any], group: Any) -> str:
    """Return the process that a call sends from or to, by its number in the world."""
    root, inner = given.get(name), given.get(f"group_{name}")
    if root is None:
        root = distributed.get_global_rank(group, inner or 0)
    return f"{'from' if name == 'src' else 'to'} {root}"
