"""Watches actions whose probability a policy learns: whether any of them was drawn by chance."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributions import Categorical, Normal

from trainguard.events.base import Event
from trainguard.observe.loop.watch.losses.policy_weights import PolicyWeights
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.named_numbers import PAID
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, user_frames, variables_of

_FRAMES = 3  # of the user's code in which rewards are looked for
_LOOKED = 4096  # actions that are looked at
_TRIES = 16  # calls in which a reward is looked for
_CHANCE = -40.0  # the logarithm of how likely it is that all are the likeliest: e^-40
_UNSURE = -0.25  # of the mean of it: data that are learned by heart are as surely the likeliest


class DrawnActions(Watcher):
    """
    The Probe event "likeliest": actions that are all the likeliest of a policy that is not sure.

    Those whose log-probability is asked of a distribution that learns, beside a variable with the
    name of a reward. measured: how many; reference: the mean of their probabilities.
    """

    makes = ("Probe:likeliest",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen = self._chosen = 0
        self._logarithms, self._tries = 0.0, 0
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of log-probabilities."""
        self.recorder.watcher(PolicyWeights).listeners.append(self._look)

    def finish(self) -> Iterable[Event]:
        """Return the actions, where not one of them was another than the likeliest."""
        others = self._chosen < self._seen
        unsure = self._logarithms <= min(_CHANCE, _UNSURE * self._seen)
        self.looked |= {"likeliest"} if others or unsure else set()
        if unsure and not others:
            mean = torch.tensor(self._logarithms / self._seen).exp()
            yield make_probe("likeliest", self._seen, mean, source=self._source)

    @shielded
    def _look(self, policy: Any, given: tuple[Any, ...], result: Any) -> None:
        """Count actions, and those that are the likeliest, until one of them is not."""
        value = given[0] if given else None
        if self._chosen < self._seen or self._seen >= _LOOKED:
            return
        if not isinstance(value, torch.Tensor) or is_transforming():
            return
        learns = isinstance(result, torch.Tensor) and result.grad_fn is not None
        if not learns or not value.is_cpu or value.requires_grad or not value.numel():
            return
        if not self._source and self._tries < _TRIES:
            self._tries += 1
            self._source = caller() if _is_paid() else ""
        likeliest = _likeliest(policy, value) if self._source else None
        if likeliest is None:
            return
        chosen, logarithms = likeliest
        self._seen += chosen.numel()
        self._chosen += int(chosen.sum())
        self._logarithms += logarithms


def _likeliest(policy: Any, value: torch.Tensor) -> tuple[torch.Tensor, float] | None:
    """Return which actions are the likeliest, and the logarithm of how likely all of them are."""
    known = vars(policy)
    if type(policy) is Normal:
        mean = known["loc"].detach()
        # One that was drawn is never the mean itself: each counts as one of ten.
        return (value == mean).flatten(), -2.3 * value.numel()
    scores = known.get("logits", known.get("probs"))
    if type(policy) is not Categorical or scores is None or value.shape != scores.shape[:-1]:
        return None
    scores = scores.detach()
    logarithms = scores.log_softmax(-1) if "logits" in known else scores.log()
    top = logarithms.max(-1)
    own = logarithms.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)
    return (own == top.values).flatten(), float(top.values.sum())


def _is_paid() -> bool:
    """Say whether a variable of the user's running functions has the name of a reward."""
    frames = user_frames(_FRAMES)
    return any(words_in(name) & PAID for frame in frames for name in variables_of(frame))
