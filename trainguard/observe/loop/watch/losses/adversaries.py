"""Watches modules that judge what others make: which way each loss pulls their scores."""

import weakref
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward, Window, is_climbed
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import has_rows, is_transforming
from trainguard.observe.tools.user_line import caller

_MADE = 16  # outputs of the latest passes
_TOLD = 8  # numbers by which an output is known again
_STEPS = 64  # after which a run without such a module has none
_ENOUGH = 8  # steps of each kind, in which scores were pulled
_ALWAYS = 0.95  # of them: a score that is right already may be pulled either way
_PENDING = 64


class _MadeOutput(NamedTuple):
    """What a pass returned: of which module, where it lies, and its first numbers."""

    module: "weakref.ref[nn.Module]"
    place: int
    shape: torch.Size
    few: torch.Tensor

    def is_in(self, given: torch.Tensor) -> bool:
        """Say whether an input is this output, as it was."""
        same = given.data_ptr() == self.place and given.shape == self.shape
        return same and torch.equal(sample_elements(given, _TOLD), self.few)


@dataclass(slots=True)
class _Judge:
    """
    How often the scores of a module were pulled up and down, by what it was given and who stepped.

    "real": what no module made. "made": what another one made, in its own steps. "other": the same,
    in the steps of those who do not hold its parameters.
    """

    module: "weakref.ref[nn.Module]"
    name: str
    pulls: dict[str, Counter[bool]] = field(default_factory=dict)
    source: str = ""
    own_line: str = ""  # of the passes whose scores its own steps pull
    is_torn: bool = False  # whether one of its own steps pulls scores of one pass both ways

    def is_of(self, held: set[int]) -> bool:
        """Say whether any of its parameters is among some, by their identities."""
        module = self.module()
        return module is not None and any(id(own) in held for own in module.parameters())

    def way_of(self, kind: str) -> bool | None:
        """Return which way scores of a kind are nearly always pulled, None where that varies."""
        pulls = self.pulls.get(kind, Counter())
        total = pulls.total()
        if total < _ENOUGH:
            return None
        way, often = pulls.most_common(1)[0]
        return way if often >= _ALWAYS * total else None

    def own_pulls(self) -> Counter[bool]:
        """Return how often its own steps pulled scores up and down, whatever it was given."""
        return self.pulls.get("real", Counter()) + self.pulls.get("made", Counter())


class Adversaries(Watcher):
    """
    The Probe events "same pull" and "one pull": a module that tells what others make from data.

    "same pull": its own loss pulls the scores of what others make one way, and those of other data
    the other way; and the loss of those others pulls them the same way as its own. measured: the
    steps of the others that were seen; label: the module. "one pull": the others learn from its
    scores, and its own steps pull all of them one way. measured: the passes whose scores they have
    pulled; reference: how many of these were over what others make; label: the module, and which
    way.
    """

    makes = ("Probe:same pull", "Probe:one pull")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._made: deque[_MadeOutput] = deque(maxlen=_MADE)
        self._judges: dict[int, _Judge] = {}
        self._pulled: list[tuple[int, bool, bool, bool, str]] = []

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a pass returned, and ask what it was given."""
        if is_transforming() or not self.recorder.probe:
            return
        given, made = self.recorder.given[:1], [t for t in tensors_in(output) if _is_known(t)][:1]
        if not given or not made or not _is_known(given[0]):
            return
        makers = [each.module() for each in self._made if each.is_in(given[0].detach())]
        judged = any(maker is not None and maker is not module for maker in makers)
        own = self._judges.get(id(module))
        own = own if own is not None and own.module() is module else None  # or one that is gone
        if judged and own is None and len(self._judges) < _MADE:
            name = self.recorder.names.module(module)
            own = self._judges[id(module)] = _Judge(weakref.ref(module), name)
        if own is None:
            few = sample_elements(made[0], _TOLD).clone()
            self._made.append(
                _MadeOutput(weakref.ref(module), made[0].data_ptr(), made[0].shape, few)
            )
        # What lies between data is neither made nor real, as that of a penalty on slopes.
        elif made[0].grad_fn is not None and (judged or not given[0].requires_grad):
            self._listen(id(module), made[0], judged)

    def _listen(self, module: int, scores: torch.Tensor, judged: bool) -> None:
        """Ask scores to tell when they are pulled."""
        source = caller()

        def on_gradient(gradient: torch.Tensor) -> None:
            """Note it, and change nothing."""
            self._note(module, judged, source, gradient)

        scores.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    @shielded
    def _note(self, module: int, judged: bool, source: str, gradient: torch.Tensor) -> None:
        """Remember which way a loss pulls scores, until it is known who steps."""
        if not self.recorder.patches.live:  # we ask for gradients ourselves
            return
        total, is_torn = 0.0, False
        with suppress(Exception):  # of several gradients at once, which have no numbers
            low, high = map(float, gradient.detach().aminmax())
            total, is_torn = float(gradient.detach().sum()), low < 0 < high
        if total and total == total and len(self._pulled) < _PENDING:
            self._pulled.append((module, judged, total > 0, is_torn, source))

    def before_step(self, window: Window) -> Columns:
        """Take down what was pulled, by who steps; a run without such modules is left alone."""
        held = {id(parameter) for parameter in window.parameters}
        steps = {key for key, *_ in self._pulled if self._judges[key].is_of(held)}
        for key, judged, way, is_torn, source in self._pulled:
            own, is_own = self._judges[key], key in steps
            if is_own:
                own.own_line, own.is_torn = source, own.is_torn or is_torn
            elif judged:
                own.source = source
            if judged or is_own:
                kind = "other" if not is_own else "made" if judged else "real"
                own.pulls.setdefault(kind, Counter())[way] += 1
        self._pulled.clear()
        if is_climbed([window]):
            self._judges.clear()
            self.recorder.dismiss(self)
        elif self.recorder.steps >= _STEPS and not self._judges:
            self.recorder.dismiss(self)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the modules whose adversaries pull as they do."""
        self._made.clear()
        for own in self._judges.values():
            yield from self._find_one_pull(own)
            real, made, other = (own.way_of(kind) for kind in ("real", "made", "other"))
            if None in (real, made, other) or real == made:
                continue
            self.looked.add("same pull")
            if other == made:
                steps = own.pulls["other"].total()
                yield make_probe("same pull", steps, label=own.name, source=own.source)

    def _find_one_pull(self, own: _Judge) -> Iterable[Event]:
        """Yield a module that others learn from, and that only ever learns to say the same."""
        pulls = own.own_pulls()
        if min(pulls.total(), own.pulls.get("other", Counter()).total()) < _ENOUGH:
            return
        self.looked.add("one pull")
        if len(pulls) == 1 and not own.is_torn:
            way = "down" if pulls[True] else "up"  # a step goes against the gradient
            made = own.pulls.get("made", Counter()).total()
            yield make_probe(
                "one pull",
                pulls.total(),
                made,
                label=f"{own.name}\n{way}",
                source=own.own_line,
            )


def _is_known(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has numbers on the host by which it is known again."""
    plain = type(tensor) is torch.Tensor and tensor.is_cpu and has_rows(tensor)
    return plain and tensor.is_floating_point() and tensor.numel() > 0
