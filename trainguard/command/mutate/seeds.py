"""
Whether a mistake does harm: what a training comes to, against what it comes to from other seeds.

The losses that a mutant logs say it where the mistake leaves the model and its loss as they are
meant to be. Where it changes what is measured (another loss, other labels, a mask that is gone),
they say nothing.
"""

from collections.abc import Iterator
from math import isfinite
from statistics import fmean

from trainguard.command.mutate.mistakes.operator import Mutant
from trainguard.command.mutate.mistakes.source import SourceFile
from trainguard.command.mutate.trial import Trial

REPEATS = 4  # seeds besides the program's own; the worst of five is beaten by chance in one of six
_SHARE = 10  # the last tenth of the losses says what a training came to
_APART = 1000  # added to the seeds of a program, so that no other one of its seeds comes again
_SEEDING = ("manual_seed", "seed", "default_rng", "RandomState", "seed_everything", "set_seed")
# Mistakes that leave alone what is measured, or make a model that no other version can take over.
_LOGGED = (
    "rates.",
    "gradients.clip",
    "gradients.step_before_backward",
    "gradients.zero_grad",
    "gradients.layer_detached",
    "gradients.loss_rewrapped",
    "loading.shuffle_off",
    "models.activation_dropped",
    "models.group_left_out",
    "models.layer_",
    "models.layers_shared",
    "models.parameters_left_out",
)

Outcome = dict[str, float]  # what the training of each optimizer came to


def is_told_by_losses(mutant: Mutant) -> bool:
    """Say whether the losses of a mutant can be held against those of the training as it is."""
    return mutant.operator.key.startswith(_LOGGED)


def end_of(mutant: Mutant, whole: Trial, found: Trial) -> Outcome | None:
    """Return what a mutant came to; None where that says nothing of it."""
    if not is_told_by_losses(mutant) or found.numbers == whole.numbers:
        return None
    return came_to(found)


def came_to(trial: Trial, *, whole: bool = False) -> Outcome:
    """Return the mean of the last losses of each optimizer: of all but its first, if wanted."""
    losses: dict[str, list[float]] = {}
    for step in trial.steps:
        losses.setdefault(step.optimizer, []).append(step.loss)
    last = {
        name: some[1:] if whole else some[-max(1, len(some) // _SHARE) :]
        for name, some in losses.items()
    }
    ends = {name: fmean(some) for name, some in last.items() if some}
    return {name: end for name, end in ends.items() if isfinite(end)}


def is_worse(found: Outcome, seeds: list[Outcome]) -> bool:
    """Say whether a mutant is above the worst of all seeds, for one of the optimizers at least."""
    names = {name for outcome in seeds for name in outcome}
    for name in names:
        known = [outcome[name] for outcome in seeds if name in outcome]
        if not found.get(name, float("nan")) <= max(known):
            return True
    return not names


def reseeded(text: bytes) -> Iterator[bytes]:
    """Yield a script with other seeds."""
    return (reseed(text, _APART * repeat) for repeat in range(1, REPEATS + 1))


def reseed(text: bytes, offset: int) -> bytes:
    """Return a script that draws other random numbers, whether it seeds them or not."""
    source = SourceFile(text, "train.py")
    edits = [
        source.replace(call.args[0], f"({source.segment(call.args[0])}) + {offset}")
        for call in source.calls(*_SEEDING)
        if call.args
    ]
    for edit in sorted(edits, key=lambda e: -e.start):
        text = text[: edit.start] + edit.text.encode() + text[edit.end :]
    body = SourceFile(text, "train.py")
    first = next((s for s in body.tree.body if not is_heading(body.segment(s))), None)
    at = len(text) if first is None else body.span(first)[0]
    return text[:at] + f"import torch; torch.manual_seed({offset}); ".encode() + text[at:]


def is_heading(text: str) -> bool:
    """Say whether a statement must stand before all others."""
    return text.startswith(('"', "'", "r'", 'r"', "from __future__"))
