"""Watches targets that name their sample: whether what is evaluated has those of the training."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loader.ends import Ends
from trainguard.observe.loader.fingerprints import row_prints
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches

_NARROWEST, _WIDEST = 3, 4096  # numbers of a target
_ROWS = 2**16  # that are kept of a training, and of an evaluation
_EVALUATIONS = 16  # that are kept: later ones are of the same samples
_DIFFERENT = 0.9  # of the targets: classes and their like are the same for many samples
_MOST = 0.5  # of the targets of an evaluation
_WHOLE = 0.9  # of those of the training: so much may be evaluated on purpose


@dataclass(slots=True)
class _TargetRows:
    """
    The targets of one loss function, as fingerprints, without what fills them up.

    rows, different: how many were learned from, and how many of them are different in their batch.
    evaluated: by the pass through a loader, or else the step, with how many rows there were.
    """

    ends: Ends = field(default_factory=Ends)
    learned: set[int] = field(default_factory=set)
    rows: int = 0
    different: int = 0
    evaluated: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    counted: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def read(self, target: torch.Tensor) -> tuple[int, ...]:
        """Return the fingerprints of targets; what was read before padding was known is let go."""
        known = self.ends.axis, self.ends.filler
        prints = row_prints([target], len(target), [self.ends])
        if known != (self.ends.axis, self.ends.filler):
            self.rows = self.different = 0
            for kept in (self.learned, self.evaluated, self.counted):
                kept.clear()
        return prints


class SharedTargets(Watcher):
    """
    The Probe event "shared targets": targets of evaluations that are those of what is learned from.

    Of targets with several numbers, as transcripts are, hardly two of which are the same. In each
    evaluation most of them are, and they are no more than a part of the training. measured,
    reference: how many of them, of all in the evaluation that shares the most.
    """

    makes = ("Probe:shared targets",)
    relies_on = ("LossFunctions", "Batches")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._of: defaultdict[str, _TargetRows] = defaultdict(_TargetRows)  # by loss function

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        self._batches = self.recorder.watcher(Batches)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Take down the targets of a call."""
        with suppress(Exception):  # whatever tensors of foreign kinds refuse
            if _is_told_apart(target):
                self._take(tally, target, learns=value.requires_grad)

    def _take(self, tally: LossCalls, target: torch.Tensor, *, learns: bool) -> None:
        """Take down the rows of a target."""
        own = self._of[tally.function]
        recent = self._batches.recent
        place = (1, recent[-1].turn) if recent else (0, self.recorder.steps)
        if learns:
            if len(own.learned) < _ROWS:
                prints = own.read(target)
                own.rows, own.different = own.rows + len(prints), own.different + len({*prints})
                own.learned.update(prints)
        elif place in own.evaluated or len(own.evaluated) < _EVALUATIONS:
            kept = own.evaluated.setdefault(place, set())
            if len(kept) < _ROWS:
                prints = own.read(target)
                kept = own.evaluated.setdefault(place, set())
                kept.update(prints)
                own.counted[place] += len(prints)

    def finish(self) -> Iterable[Event]:
        """Return what evaluations share, of the function that has the most targets."""
        for own in sorted(self._of.values(), key=lambda own: -len(own.learned)):
            apart = own.different >= _DIFFERENT * own.rows > 0 and all(
                len(kept) >= _DIFFERENT * own.counted[place]
                for place, kept in own.evaluated.items()
            )
            if own.evaluated and apart:
                self.looked.add("shared targets")
                shares = [(len(kept & own.learned), kept) for kept in own.evaluated.values()]
                if all(
                    _MOST * len(kept) < both < _WHOLE * len(own.learned) for both, kept in shares
                ):
                    both, kept = max(shares, key=lambda share: share[0])
                    yield make_probe("shared targets", both, len(kept))
                return


def _is_told_apart(target: Any) -> bool:
    """Say whether a target has a row of several numbers for each sample, that is no output."""
    if not isinstance(target, torch.Tensor) or target.dim() < 2 or target.requires_grad:
        return False
    wide = _NARROWEST <= target[:1].numel() <= _WIDEST
    return wide and len(target) > 1 and target.is_cpu and has_memory(target)
