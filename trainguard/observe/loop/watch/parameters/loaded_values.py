"""Watches what is loaded into modules: whether the first pass after that puts something else."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from trainguard.events.base import Event
from trainguard.observe.loop.deferred import to_host
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_LARGEST = 2**16  # elements of a parameter that is looked at: what is made of a batch is small
_MOST = 256  # parameters of one load
_LOADS = 3  # of one module: targets and averages are loaded again and again
_PASSES = 64  # after which what was loaded is not waited for any more
_FOUND = 16
_UNRELATED = 0.5  # a cosine: what was averaged, pruned or made noisy is nearer, drawn anew is 0
_ALIGNED = 1e-6  # below a cosine of 1: rows that are only scaled


@dataclass(slots=True)
class _Loaded:
    """
    A parameter with what was loaded into it.

    load: the number of the load. news: whether that differs from what it was before. before_pass:
    that, whether it is still there before the first pass, and its cosine with what is there. steps:
    made until that pass.
    """

    parameter: "weakref.ref[nn.Parameter]"
    name: str
    value: torch.Tensor
    news: torch.Tensor
    source: str
    load: int
    before_pass: tuple[torch.Tensor, ...] = ()
    steps: int = -1

    def compare_with(self, now: torch.Tensor, steps: int) -> None:
        """Take down how what is there before a pass differs from what was loaded."""
        if has_memory(now):
            # A model is moved, or made smaller, after its load as often as before it.
            self.value = self.value.to(now.device, now.dtype)
            both = (now.flatten().double(), self.value.flatten().double())
            intact, alike = (now == self.value).all(), cosine_similarity(*both, dim=0)
            self.before_pass, self.steps = (self.news.to(now.device), intact, alike), steps


class LoadedValues(Watcher):
    """
    The Probe events "overwritten": parameters whose loaded values a pass has replaced.

    measured: how far they were moved, as a share of what they were. And "load lost": matrices that
    were loaded, and had other values before the first pass, of how many.
    """

    makes = ("Probe:overwritten", "Probe:load lost")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._loads: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._pending: dict[int, _Loaded] = {}
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        self._passes = self._count = 0
        self._seen: list[tuple[_Loaded, int, torch.Tensor]] = []

    def install(self, patches: Patches) -> None:
        """Listen to what loads states."""
        patches.replace(nn.Module, "load_state_dict", self._loading)

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `Module.load_state_dict` after which what it has loaded is known."""

        @wraps(load)
        def wrapper(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            """Load the state between two looks at the parameters."""
            if not self.recorder.patches.active:
                return load(module, *args, **kwargs)
            before = self._copy(module)
            result = load(module, *args, **kwargs)
            self._note(module, before)
            self._remember(module, args[0] if args else kwargs.get("state_dict"))
            return result

        return wrapper

    @shielded
    def _remember(self, module: nn.Module, state: Any) -> None:
        """Remember what a state has something for."""
        for name, parameter in nn.Module.named_parameters(module):
            if name in state:
                self._known[id(parameter)] = weakref.ref(parameter)

    def knows(self, parameter: torch.Tensor) -> bool:
        """Say whether something was loaded into a parameter."""
        known = self._known.get(id(parameter))
        return known is not None and known() is parameter  # ids are used again

    @shielded
    def _copy(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return copies of the small parameters of a module."""
        count = self._loads[module] = self._loads.get(module, 0) + 1
        if count > _LOADS:
            return {}
        own = nn.Module.named_parameters(module)
        small = [(n, p) for n, p in own if has_memory(p) and 1 < p.numel() <= _LARGEST]
        return {name: p.detach().clone() for name, p in small[:_MOST]}

    @shielded
    def _note(self, module: nn.Module, before: dict[str, torch.Tensor]) -> None:
        """Remember what was loaded into a module, until its first pass."""
        own = dict(nn.Module.named_parameters(module)) if before else {}
        self._count += 1
        for name, was in before.items():
            if (p := own.get(name)) is not None and p.shape == was.shape:
                value = p.detach().clone()
                news = (value != was).any()
                self._pending[id(p)] = _Loaded(
                    weakref.ref(p), name, value, news, caller(), self._count
                )
        self._passes = 0
        if self._pending:
            recorder = self.recorder
            self._listen(True)
            recorder.woken = recorder.woken or not recorder.patches.watching
            recorder.patches.watching = True  # the first pass is seen in a long run too

    def _before_pass(self, module: nn.Module) -> None:
        """See whether what was loaded is still there when a module is called."""
        self._passes += 1
        if self._passes > _PASSES or not self.recorder.is_looking():
            self._pending.clear()
            self._listen(False)
            return
        for p in module.parameters():
            loaded = self._pending.get(id(p))
            if loaded is not None and loaded.parameter() is p and p.shape == loaded.value.shape:
                loaded.compare_with(p.detach(), self.recorder.steps)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See what has become of loaded parameters in the pass of a module."""
        if not self._pending:
            return
        name = self.recorder.names.module(module)
        for p in module.parameters():
            loaded = self._pending.get(id(p))
            if loaded is None or not loaded.before_pass or loaded.parameter() is not p:
                continue
            del self._pending[id(p)]
            self.looked.add("overwritten")
            if loaded.steps == self.recorder.steps and len(self._seen) < _MOST:
                with torch.no_grad():
                    seen = torch.stack([*loaded.before_pass, *_compare(loaded.value, p)])
                loaded.name = f"{loaded.name} of {name}"
                self._seen.append((loaded, forward.step, seen))
        if not self._pending:
            self._listen(False)

    def _listen(self, wanted: bool) -> None:
        """Be told before each pass, or no more."""
        others = [told for told in self.recorder.before_pass if told != self._before_pass]
        self.recorder.before_pass = [*others, self._before_pass] if wanted else others

    def finish(self) -> Iterable[Event]:
        """Return what was put into parameters instead of what had been loaded."""
        self._pending.clear()
        numbers = to_host([seen for _, _, seen in self._seen])
        rows = [row.tolist() for row in numbers]
        found = 0
        for (loaded, step, _), row in zip(self._seen, rows, strict=True):
            news, intact, _, moved, only_scaled = row
            if news and intact and moved > 0 and not only_scaled and found < _FOUND:
                found += 1
                yield make_probe(
                    "overwritten", moved, step=step, label=loaded.name, source=loaded.source
                )
        yield from self._find_lost(rows)

    def _find_lost(self, rows: list[list[float]]) -> Iterable[Event]:
        """Yield the loads of which most matrices were others before the first pass."""
        loads: dict[int, list[tuple[_Loaded, int, bool]]] = {}
        for (loaded, step, _), (news, intact, alike, *_) in zip(self._seen, rows, strict=True):
            if news and loaded.value.dim() > 1:
                gone = not intact and abs(alike) < _UNRELATED
                loads.setdefault(loaded.load, []).append((loaded, step, gone))
        for load in loads.values():
            lost = [(loaded, step) for loaded, step, gone in load if gone]
            if 2 * len(lost) > len(load):
                first, step = lost[0]
                named = {"label": first.name, "step": step, "source": first.source}
                yield make_probe("load lost", len(lost), len(load), **named)


def _compare(loaded: torch.Tensor, now: torch.Tensor) -> list[torch.Tensor]:
    """Return how far values have moved, as a share, and whether they were only made smaller."""
    before, after = loaded.double(), now.detach().double()
    moved = (after - before).norm() / before.norm().clamp_min(1e-12)
    smaller = ((after.abs() <= before.abs()) & (after * before >= 0)).all()
    one, other = (t.flatten(1) if t.dim() > 1 else t[None] for t in (before, after))
    aligned = cosine_similarity(one, other, dim=1).abs() >= 1 - _ALIGNED
    scaled = smaller | aligned.all()
    return [moved.nan_to_num(posinf=1e12), scaled]
