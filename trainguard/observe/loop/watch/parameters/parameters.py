"""Watches parameters: whether they move, get gradients and are held, from first sight to last."""

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.observe.loop.gradient_counts import GradientCounts
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies
from trainguard.observe.loop.watch.parameters.initial_draws import look_at_draws
from trainguard.observe.loop.watch.parameters.parameter_history import (
    ParameterHistory,
    set_bits,
    set_told,
    take_frozen,
    take_moves,
)
from trainguard.observe.loop.watch.parameters.thaws import Thaw, Thaws
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window, gradient_of, is_given
from trainguard.observe.tools.fingerprint import checksums, sample_elements
from trainguard.observe.tools.local_values import has_memory

_MISSPELLED = {"require_grad", "required_grad", "requires_gard", "requires_grads"} | {
    *("require_grads", "requires_gradient", "require_gradient", "require_gradients")
}
_UNHEARD = _MISSPELLED | {"requires_grad"}  # of a module, that says nothing either
_FROZEN = 32  # frozen parameters without a gradient that are looked at around a step
_SAMPLED = 1024  # elements of each


class Parameters(Watcher):
    """The Parameter events."""

    makes = ("Parameter",)
    relies_on = ("Gradients", "AveragedCopies", "LoadedValues")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._every: list[ParameterHistory] = []  # in the order of their models
        self._by_id: dict[int, ParameterHistory] = {}
        self._known: tuple[int, ...] = ()
        self._received: dict[int, tuple[GradientCounts, list[ParameterHistory | None]]] = {}
        self._rates: dict[tuple[int, int], float] = {}
        self._frozen: dict[int, tuple[list[ParameterHistory], list[int | None]]] = {}
        self._thaws = Thaws()

    def before_backward(self, loss: torch.Tensor) -> None:
        """Meet the parameters of modules and optimizers that are new."""
        if self._known != (len(self.recorder.called), *map(id, self.recorder.windows)):
            with torch.no_grad():
                self._meet()

    def after_backward(self, loss: torch.Tensor) -> None:
        """Count the gradients that have arrived."""
        for window in self.recorder.windows:
            if any(window.received):
                self._received_by(window).count(window)

    def before_step(self, window: Window) -> Columns:
        """Keep the largest norms and rates; on surveyed steps look at all that may change."""
        if window.is_surveyed:
            self._meet(window)
            self._look_at_groups(window, self._look())
        self._received_by(window).measure(window)
        self._take_rates(window)
        return {}

    def after_step(self, window: Window) -> Columns:
        """See what the step has moved, among what was not seen to move before."""
        if id(window) in self._frozen:
            self._look_at_frozen(*self._frozen.pop(id(window)))
        if window.index & (window.index - 1) == 0:
            self._compare()
        return {}

    def finish(self) -> Iterator[Event]:
        """Return what became of the parameters that were there when the last step was made."""
        with torch.no_grad():
            self._meet()
            self._look()
            self._compare()
        for window in self.recorder.windows:
            if any(window.received):
                self._received_by(window).count(window)
        for key in list(self._received):
            self._settle(key)
        copies = self.recorder.watcher(AveragedCopies).ids
        yield from (self._event(seen, copy=seen.key in copies) for seen in self._in_one_piece())

    def _in_one_piece(self) -> list[ParameterHistory]:
        """Return what was seen, without the wholes that modules make of parameters in shards."""
        pairs = [(seen, seen.parameter()) for seen in self._every]
        shards = {seen.name for seen, p in pairs if hasattr(p, "device_mesh")}
        return [
            seen
            for seen, p in pairs
            if p is None
            or hasattr(p, "device_mesh")
            or ((p.is_meta or has_memory(p)) and seen.name not in shards)
        ]

    def find_silent(self, least: int) -> list[torch.Tensor]:
        """
        Return the parameters that got so many gradients or more, the latest of them all zeros.

        Of those on an accelerator what is known since `ask_norms`, if that was called in time.
        """
        return [
            parameter
            for received, every in self._received.values()
            if max(received.counts, default=0) >= least and (known := received.norms_and_zeros())[0]
            for seen, count, norm, dead in zip(every, received.counts, *known, strict=True)
            if count >= least and seen is not None
            if dead >= least or not (norm or seen.gradient)
            if (parameter := seen.parameter()) is not None
        ]

    def ask_norms(self, least: int) -> None:
        """Ask for the norms of what got so many gradients or more, where they are not here."""
        for received, _ in self._received.values():
            if max(received.counts, default=0) >= least and (away := received.norms_away()):
                self.recorder.reads.ask(self, away, received.take_norms)

    # What there is

    def _of(self, parameter: torch.Tensor) -> ParameterHistory | None:
        """Return what is known of a parameter; a deleted one may have had the same id."""
        seen = self._by_id.get(id(parameter))
        return seen if seen is not None and seen.parameter() is parameter else None

    def _present(self, stepping: Window | None) -> Iterator[torch.Tensor]:
        """Yield the parameters of called modules, then those of optimizers that are in use."""
        self.recorder.names.refresh()
        yield from self.recorder.names.parameters()
        for window in self.recorder.windows:
            if window is stepping or window.index or any(window.received):
                for _, parameter in _iterate_held(window):
                    yield parameter

    def _meet(self, stepping: Window | None = None) -> None:
        """Take down every parameter that is not known yet, in the order of the models."""
        self._known = (len(self.recorder.called), *map(id, self.recorder.windows))
        last = self.recorder.steps - 1  # a step by hand may be found out after it was made
        self._every = [seen for seen in self._every if seen.left is None or seen.left >= last]
        fresh = {
            id(p): p for p in self._present(stepping) if self._of(p) is None and not is_lazy(p)
        }
        taken = [self._take(parameter) for parameter in fresh.values()]
        if taken:
            self._ask_checksums([*fresh.values()], partial(set_bits, taken))

    def _ask_checksums(
        self, tensors: list[torch.Tensor], take: Callable[[list[int | None]], None]
    ) -> None:
        """Have the checksums of tensors told without waiting for them."""
        self.recorder.reads.ask_checksums(self, tensors, take)

    def _take(self, parameter: torch.Tensor) -> ParameterHistory:
        """Take down one parameter."""
        recorder = self.recorder

        def on_delete(_: object) -> None:
            """Remember when the parameter was deleted."""
            seen.left = recorder.steps

        form = parameter.dtype, parameter.shape
        seen = ParameterHistory(weakref.ref(parameter, on_delete), id(parameter), form)
        seen.name = recorder.names.parameter(parameter)
        seen.module = recorder.names.holder(parameter)
        self._every.append(seen)
        self._by_id[id(parameter)] = seen
        return seen

    # What becomes of it

    def _look(self) -> dict[int, bool]:
        """Look at flags and names; return the ids of parameters in modules, and if those ran."""
        below = self._below_roots()
        self._take_unheard()
        for window in self.recorder.windows:
            if not window.index:  # one that never steps holds its parameters too
                for place, held in _iterate_held(window):
                    known = self._of(held)
                    if known is not None:
                        known.groups.add((id(window), place))
        for seen in self._every:
            alive = seen.parameter()
            if alive is not None:
                seen.required.add(alive.requires_grad)
                if self._thaws.is_fresh(seen.key, requires=alive.requires_grad) and seen.groups:
                    thaw = self._thaws.open[seen.key] = Thaw(self._count(seen))
                    self._ask_checksums([alive], partial(set_bits, [thaw]))
                seen.called |= below.get(seen.key, False)
                if self.recorder.names.knows(alive):
                    seen.name = self.recorder.names.parameter(alive)
                    seen.module = self.recorder.names.holder(alive)
        look_at_draws(self.recorder, self._of)
        return below

    def _below_roots(self) -> dict[int, bool]:
        """Return the ids of the parameters of called modules, and whether their own module ran."""
        called = self.recorder.called
        below: dict[int, bool] = {}
        for root in self.recorder.names.roots():
            for module in root.modules():
                for parameter in module._parameters.values():  # noqa: SLF001 methods are overridden
                    was = below.get(id(parameter), False)
                    below[id(parameter)] = was or id(module) in called
        return below

    def _take_unheard(self) -> None:
        """Take down which parameters are to be frozen by an attribute that torch does not know."""
        modules = (module for root in self.recorder.names.roots() for module in root.modules())
        fresh = {
            seen.key: (seen, parameter, name)
            for module in modules
            for parameter, name in _find_unheard(module)
            if (seen := self._of(parameter)) is not None and not seen.unheard
        }
        for seen, _, name in fresh.values():
            seen.unheard = name
        if fresh:
            told = [seen for seen, _, _ in fresh.values()]
            self._ask_checksums([p for _, p, _ in fresh.values()], partial(set_told, told))

    def _look_at_groups(self, window: Window, below: dict[int, bool]) -> None:
        """Look at what the optimizer holds, and take down what is frozen in it before its step."""
        frozen: list[tuple[ParameterHistory, torch.Tensor]] = []
        for place, parameter in _iterate_held(window):
            seen = self._of(parameter)
            if seen is not None:
                seen.groups.add((id(window), place))
                self._thaws.close(seen.key)
                seen.orphan = bool(below) and seen.key not in below
                given = gradient_of(parameter) is not None and True not in seen.required
                if not parameter.requires_grad and not given:  # given by hand, it is to be moved
                    frozen.append((seen, parameter))
        # Without a gradient, few optimizers move anything: some of those parameters will do.
        at_risk = [pair for pair in frozen if gradient_of(pair[1]) is not None]
        others = [pair for pair in frozen if gradient_of(pair[1]) is None]
        chosen = at_risk + others[:: len(others) // _FROZEN + 1]
        if chosen:
            before: list[int | None] = []
            samples = [sample_elements(parameter, _SAMPLED) for _, parameter in chosen]
            self._ask_checksums(samples, before.extend)
            self._frozen[id(window)] = [seen for seen, _ in chosen], before

    def _look_at_frozen(self, frozen: list[ParameterHistory], before: list[int | None]) -> None:
        """See which of the frozen parameters an optimizer's step has moved."""
        alive = {i: p for i, seen in enumerate(frozen) if (p := seen.parameter()) is not None}
        if alive:
            samples = [sample_elements(parameter, _SAMPLED) for parameter in alive.values()]
            self._ask_checksums(samples, partial(take_frozen, frozen, before, [*alive]))

    def _compare(self) -> None:
        """See which parameters differ from what they were at first sight, or when told to stay."""
        pairs = [(seen, p) for seen in self._every if (p := seen.parameter()) is not None]
        told = {id(seen) for seen, _ in pairs if seen.unheard and not seen.defied}
        still = [(seen, p) for seen, p in pairs if not seen.moved or id(seen) in told]
        if not still:
            return
        fed: set[int] = set()  # those on an accelerator, of which it is known only later
        unfed = [(seen, p) for seen, p in still if not (seen.fed or p.is_cpu or p.is_meta)]
        away = {id(seen): given for seen, p in unfed if (given := is_given(p)) is not None}
        if away:
            flags = [*away.values()]
            self.recorder.reads.ask(self, flags, lambda here: fed.update(compress(away, here)))
        kept = [(seen, seen.form == (p.dtype, p.shape), id(seen) in told) for seen, p in still]
        self._ask_checksums([p for _, p in still], partial(take_moves, kept, fed))

    def _received_by(self, window: Window) -> GradientCounts:
        """Return what counts the gradients of a window, made anew where it holds others."""
        kept = self._received.get(id(window))
        if kept is not None and kept[0].fits(window):
            return kept[0]
        self._settle(id(window))
        self._meet()
        every = [self._of(parameter) for parameter in window.parameters]
        counted: dict[int, int] = {}
        if kept is not None and kept[0].index == window.index:
            counted = dict(zip(map(id, kept[1]), kept[0].last, strict=True))
        received = GradientCounts(window, [counted.get(id(seen), 0) for seen in every])
        self._received[id(window)] = received, every
        return received

    def _settle(self, key: int) -> None:
        """Add what a window's parameters were given to what is known of each."""
        kept = self._received.pop(key, None)
        if kept is None:
            return
        received, every = kept
        columns = received.counts, received.norms(), received.dead()
        for seen, count, norm, zeros in zip(every, *columns, strict=True):
            if seen is not None:
                seen.received[key] = seen.received.get(key, 0) + count
                seen.gradient = max(seen.gradient, norm)
                seen.dead = zeros

    def _take_rates(self, window: Window) -> None:
        """Keep the highest rate of each group; one on an accelerator is looked at now and then."""
        optimizer = window.optimizer() if window.optimizer is not None else None
        for place, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
            rate = group.get("lr", 0.0)
            key, away = (id(window), place), isinstance(rate, torch.Tensor) and not rate.is_cpu
            if away and window.is_surveyed:
                take = partial(self._take_rate, key)
                self.recorder.reads.ask(self, [rate.detach().clone()], take)
            elif not away:
                self._rates[key] = max(self._rates.get(key, 0.0), float(rate))

    def _take_rate(self, key: tuple[int, int], here: list[torch.Tensor]) -> None:
        """Take down the rate of a group that has come from an accelerator."""
        self._rates[key] = max(self._rates.get(key, 0.0), float(here[0]))

    def _event(self, seen: ParameterHistory, *, copy: bool) -> Parameter:
        """Return what became of one parameter."""
        alive, names = seen.parameter(), self.recorder.names
        # One whose model is gone may have moved after the last look, if it had no reason before.
        unseen = alive is None and seen.gradient > 0 and not seen.fed
        return Parameter(
            name=seen.name,
            module=seen.module,
            elements=seen.form[1].numel(),
            dimensions=len(seen.form[1]),
            own=alive is not None and names.is_own(alive),
            source=names.source(alive) if alive is not None else "",
            hidden=seen.key in names.hidden and alive is not None,
            trainable=True in seen.required,
            thawed=len(seen.required) > 1,
            learns=alive is not None and alive.requires_grad,
            held=bool(seen.groups),
            orphan=seen.orphan and bool(seen.groups),
            called=seen.called,
            received=self._total(seen),
            gradient=seen.gradient,
            dead=seen.dead,
            astray=self._astray(seen),
            moved=seen.moved or unseen,
            moved_frozen=seen.moved_frozen,
            unheard=seen.unheard if seen.defied else "",
            rate=max((self._rates.get(group, 0.0) for group in seen.groups), default=0.0),
            copy=copy,
            drawn=bool(seen.drawn) and not seen.moved,
            loaded=seen.loaded,
        )

    def _astray(self, seen: ParameterHistory) -> int:
        """Return how many gradients were lost on a parameter since it was thawed."""
        thaw, alive = self._thaws.open.get(seen.key), seen.parameter()
        if thaw is None or alive is None or thaw.bits is None or checksums([alive])[0] != thaw.bits:
            return 0
        windows = [each for each in self.recorder.windows if each.is_used]
        counting = sum(not window.is_gone for window in windows)
        return (self._count(seen) - thaw.received) // max(1, counting)

    def _count(self, seen: ParameterHistory) -> int:
        """Return the gradients that all windows have counted of a parameter so far."""
        counting = (
            count
            for received, every in self._received.values()
            for count, one in zip(received.counts, every, strict=True)
            if one is seen
        )
        return sum(seen.received.values()) + sum(counting)

    def _total(self, seen: ParameterHistory) -> int:
        """Return how many gradients a parameter got: for optimizers in turns, those of each."""
        live = {id(window) for window in self.recorder.windows if not window.is_gone}
        past = sum(count for key, count in seen.received.items() if key not in live)
        return past + max((n for key, n in seen.received.items() if key in live), default=0)


def _find_unheard(module: nn.Module) -> Iterator[tuple[torch.Tensor, str]]:
    """Yield parameters that were to be frozen by an attribute that torch does not know."""
    for name in vars(module).keys() & _UNHEARD:
        if vars(module)[name] is False:
            for below in nn.Module.parameters(module):
                yield below, f"{type(module).__name__}.{name}"
    for parameter in module._parameters.values():  # noqa: SLF001 methods are overridden
        for name in getattr(parameter, "__dict__", {}).keys() & _MISSPELLED:
            if parameter is not None and vars(parameter)[name] is False:
                yield parameter, name


def _iterate_held(window: Window) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield all that a window's optimizer holds, frozen or not, with the number of its group."""
    optimizer = window.optimizer() if window.optimizer is not None else None
    for place, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        for parameter in group["params"]:
            yield place, parameter
