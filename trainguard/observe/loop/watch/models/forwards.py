"""Watches calls of outermost modules: which ones learn, their modes, what the others leave."""

import weakref
from collections.abc import Iterable
from dataclasses import replace
from math import nan
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.loop import Evaluation
from trainguard.observe.loop.alike_samples import Number, mean_of
from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.mixed_terms import Factors, MixedTerms
from trainguard.observe.loop.watch.models.pass_segment import PassSegment, PassState
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import DENSE, EVERY, Forward, Window
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_PENDING = 256
_SMALL = 65536  # elements of a buffer that is compared
_BATCH_NORM = nn.modules.batchnorm._NormBase  # noqa: SLF001 what all of them derive from
_DROPOUT = nn.modules.dropout._DropoutNd  # noqa: SLF001


class Forwards(Watcher):
    """
    The columns trained, training and asleep, and the Evaluation events.

    evaluated: the modules that were called in evaluation mode, with no graph. factors: what the
    calls of loss functions are multiplied by in a loss of several terms, where that is known.
    """

    makes = ("trained", "training", "asleep", "Evaluation")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.factors: Factors = ()
        self.evaluated = weakref.WeakSet[nn.Module]()
        self._sensitive: dict[int, list[tuple[nn.Module, str]]] = {}
        self._segment: PassSegment | None = None
        self._early: Number = None
        self._pending: list[tuple[Forward, weakref.ref[nn.Module]]] = []
        self._found: list[Columns] = []
        self._settled: list[bool] = []  # of those found
        self._windows_with: set[int] = set()

    def install(self, patches: Patches) -> None:
        """Be told before each pass of what it begins with."""
        self.recorder.before_pass.append(self._before_pass)

    def _before_pass(self, module: nn.Module) -> None:
        """See what of an evaluation is left where the training goes on."""
        segment = self._segment
        if segment is None or segment.module() is not module or segment.first.gradients:
            return
        if torch.is_grad_enabled() and segment.first.step == self.recorder.steps:
            segment.settle(self._state(module))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Note the mode of a pass, and be told when a backward reaches its output."""
        sensitive = self.sensitive_parts(module)
        forward.asleep = tuple(
            name for part, name in sensitive if not (part.training or _is_frozen(part))
        )
        forward.awake = tuple(name for part, name in sensitive if _is_awake(part))
        forward.measured, self._early = self._early, None
        if not (forward.gradients or forward.training):
            self.evaluated.add(module)
        if forward.gradients and self._await(forward, output):
            forward.source = caller()  # nobody may ever learn from it
            self._close()
            self._pending.append((forward, weakref.ref(module)))
            del self._pending[:-_PENDING]
        else:
            self._add_pass(forward, module)

    def before_step(self, window: Window) -> Columns:
        """Return how the passes that learned were made."""
        learned = [f for f in window.forwards if f.learned]
        if not learned:
            return {"trained": 0}
        return {
            "trained": len(learned),
            "training": all(f.training for f in learned),
            "asleep": learned[-1].asleep[:4],
        }

    def after_step(self, window: Window) -> Columns:
        """Take passes that no backward has reached within a step of everyone for an evaluation."""
        stepping = sum(1 for each in self.recorder.windows if each.index)
        oldest = self.recorder.steps - max(1, stepping) - 1
        idle = [pair for pair in self._pending if not pair[0].learned and pair[0].step < oldest]
        self._pending = [p for p in self._pending if not p[0].learned and p[0].step >= oldest]
        for forward, ref in idle:
            module = ref()
            if module is not None and not forward.shared:  # or a loss of a step was given up
                self._add_pass(forward, module, late=True)
        if idle:
            self._close()
        return {}

    def add_loss(self, value: torch.Tensor, reduction: str = "") -> None:
        """Note what a loss function returned, for the passes that do not learn."""
        if self.recorder.calling:  # inside a pass that is only told of once it is over
            self._early = mean_of(value)
        elif value.requires_grad:
            for forward, _ in self._pending[-1:]:
                forward.measured = mean_of(value)
        elif self._segment is not None and self._segment.count < 4096:
            samples = self.recorder.recent[-1].samples
            self._segment.add(mean_of(value))
            self._segment.weighted = self._segment.weighted + self._segment.last * samples
            self._segment.sizes.append(samples)
            self._segment.reductions.add(reduction)
            if self._segment.mixed is not None:
                self._segment.mixed.add(self._segment.last, samples)

    def finish(self) -> Iterable[Event]:
        """Return the evaluations, the one that goes on among them."""
        self._close()
        return self.so_far()

    def so_far(self) -> Iterable[Event]:
        """
        Return the evaluations that are over; those that every step has are a routine.

        A training that comes after another one, as after a probe, may have a teacher of its own.
        """
        often = [begin for begin in self.recorder.stages if self._is_often(begin)]
        for at, columns in enumerate(self._found):
            self._found[at] = self.recorder.faults.fetch(columns)
        undone = {name for columns in self._found for name in columns["undone"]}
        for columns, settled in zip(self._found, self._settled, strict=True):
            event = Evaluation(**{key: columns[key] for key in columns if key != "undone"})
            # The last one is followed by no training: what was put back before is taken for so.
            put_back = set[str]() if settled else undone
            touched = tuple(name for name in event.touched if name not in put_back)
            comes = bool(often) and min(often) <= event.step
            yield replace(event, routine=comes and not event.measures, touched=touched)

    def _is_often(self, begin: int) -> bool:
        """Say whether most steps have such passes, of the first ones from the begin of a stage."""
        # A second optimizer of the first training begins a stage too, and does not end that one.
        later = [each for each in self.recorder.stages if each > begin] if begin else []
        made = max(1, min([*later, self.recorder.steps]) - begin)
        steps = min(made, int(EVERY * DENSE))  # those that are all watched
        passes = sum(1 for at in self._windows_with if begin <= at <= begin + steps)
        return passes > 0.5 * steps and steps > 2

    def sensitive_parts(self, module: nn.Module) -> list[tuple[nn.Module, str]]:
        """Return the modules whose mode matters, with their names; looked up once."""
        known = self._sensitive.get(id(module))
        if known is None:
            name = self.recorder.names.module
            known = self._sensitive[id(module)] = [
                (part, name(part))
                for part in module.modules()
                if (isinstance(part, _BATCH_NORM) and part.track_running_stats)
                or (isinstance(part, _DROPOUT) and part.p > 0)
            ]
        return known

    def _await(self, forward: Forward, output: Any) -> bool:
        """Ask the output to tell when a backward reaches it; say whether one can."""

        def on_gradient(_gradient: torch.Tensor) -> None:
            """Remember that the pass was learned from."""
            forward.learned = True

        def on_other_gradient(_gradient: torch.Tensor) -> None:
            """Remember that what made its input was learned from, if not by this pass."""
            forward.shared = True

        able = [t for t in tensors_in(output) if t.requires_grad and t.grad_fn is not None][:8]
        for tensor in able:
            tensor.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        for tensor in [t for t in self.recorder.given if t.grad_fn is not None][:2] if able else ():
            tensor.register_hook(on_other_gradient)  # type: ignore[no-untyped-call]
        return bool(able)

    def _add_pass(self, forward: Forward, module: nn.Module, late: bool = False) -> None:
        """Add a pass to the evaluation that is going on, or begin one."""
        segment = self._segment
        if segment is not None and (
            segment.module() is not module
            or segment.first.step != forward.step
            or segment.first.gradients != forward.gradients
            or segment.first.training != forward.training
        ):
            self._close()
            segment = None
        compared = segment is None or segment.goes_on
        state = self._state(module) if compared else None
        was = segment.state if segment is not None else None
        if state is not None and was is not None and self._is_rewritten(module, was, state):
            self._close()
            segment = None
        if segment is None:
            forward.source = forward.source if late else caller(4)
            mixed = MixedTerms(self.factors) if self.factors else None
            segment = self._segment = PassSegment(
                weakref.ref(module), forward, idle=late, mixed=mixed
            )
        segment.begin(self.recorder.given)
        if segment.mixed is not None:
            segment.mixed.begin()
        if forward.measured is not None:
            segment.add(forward.measured)
        if state is not None:
            segment.compare(state)

    def _state(self, module: nn.Module) -> PassState:
        """Return what a pass must not change."""
        name = self.recorder.names.module(module)
        with torch.no_grad():
            sums = {
                f"{name}.{key}": buffer.double().sum().nan_to_num()
                for key, buffer in module.named_buffers()
                if buffer.numel() <= _SMALL and not buffer.is_complex() and has_memory(buffer)
            }
            away = {key: number for key, number in sums.items() if not number.is_cpu}
            # In one tensor: a network has many buffers, and each alone would be waited for.
            first = next(iter(away.values()), None)
            moved = (
                None if first is None else torch.stack([n.to(first.device) for n in away.values()])
            )
        numbers = {key: float(number) for key, number in sums.items() if number.is_cpu}
        numbers |= {f"{name}.{key}": p._version for key, p in module.named_parameters()}  # noqa: SLF001
        return PassState(numbers, tuple(away), moved)

    def _is_rewritten(self, module: nn.Module, was: PassState, state: PassState) -> bool:
        """Say whether all parameters were written since the last pass, as by load_state_dict."""
        name = self.recorder.names.module(module)
        keys = [f"{name}.{key}" for key, _ in module.named_parameters()]
        return all(was.numbers.get(key) != state.numbers.get(key) for key in keys)

    def _close(self) -> None:
        """End the evaluation that is going on, and see what it left behind."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        first, sizes = segment.first, segment.sizes
        self._windows_with.add(first.step)
        weighted = segment.count and len(sizes) == segment.count and all(sizes)
        columns = {
            "step": first.step,
            "clock": first.clock,
            "module": first.module,
            "source": first.source,
            "passes": segment.passes,
            "repeats": segment.repeats,
            "loss": segment.total / segment.count if segment.count else nan,
            "count": segment.count,
            "weighted": segment.weighted / sum(sizes) if weighted else nan,
            "last": segment.last,
            "samples": sum(sizes),
            "reduction": "/".join(sorted(segment.reductions)),
            **_mix(segment.mixed, segment.passes),
            "measures": segment.count > 0,
            "training": first.training,
            "awake": first.awake[:4],
            "gradients": first.gradients,
            "idle": segment.idle,
            "touched": _named(segment, segment.touched, segment.touched_away),
            "undone": _named(segment, segment.undone, segment.undone_away),
        }
        if len(self._found) < 2048:
            self._found.append(columns)
            self._settled.append(segment.settled)
        if self.recorder.live is not None and segment.count:
            self.recorder.live.ask_soon()


def _mix(mixed: MixedTerms | None, passes: int) -> Columns:
    """Return the losses of an evaluation that has the terms of the training, if it has."""
    if mixed is None:
        return {}
    mixed.begin()
    if not mixed.sound or mixed.passes != passes:
        return {}
    return {
        "mixed": mixed.total / mixed.passes,
        "mixed_weighted": mixed.weighted / mixed.samples if mixed.samples else nan,
        "mixed_by": mixed.largest,
        "mixed_samples": mixed.samples,
    }


def _is_awake(part: nn.Module) -> bool:
    """Say whether a part is in training mode, and not to gather statistics, as by `update_bn`."""
    return part.training and not (isinstance(part, _BATCH_NORM) and part.momentum is None)


def _is_frozen(part: nn.Module) -> bool:
    """Say whether batch statistics belong to weights that are frozen; they are to sleep as well."""
    scale = getattr(part, "weight", None)
    return isinstance(scale, torch.Tensor) and not scale.requires_grad


def _named(segment: PassSegment, here: set[str], away: torch.Tensor | None) -> Any:
    """Return the names of what an evaluation changed, which may not be known before the end."""
    state = segment.state
    if state is None or away is None:
        return tuple(sorted(here))[:4]

    def named(changed: list[float]) -> tuple[str, ...]:
        """Return the names of all that was changed."""
        own = {name for name, was in zip(state.names, changed, strict=True) if was}
        return tuple(sorted(here | own))[:4]

    return Deferred(away, named)
