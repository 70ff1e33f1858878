"""Watches how the terms of a loss pull: the gradient of each, against that of the largest."""

from collections.abc import Sequence
from contextlib import ExitStack
from math import hypot, isfinite
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import Token
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.isolation import keep_streams
from trainguard.observe.tools.patches import Patches, tell_before

_grad = torch.autograd.grad  # that of torch: a recorder listens to the other one
_MOST_TERMS = 8
_MOST_PARAMETERS = 16
_MOST_NODES = 20000
_NEAR = 256  # nodes from the loss in which its terms are looked for
_ROOM = 2**20  # elements of the chosen parameters
_RESOLVED = 1e-5  # of what float32 can tell apart when one gradient is subtracted from another
_TRIES = 8
_GROWTH = 4

Norms = list[float]  # one for each chosen parameter


class TermGradients(Watcher):
    """
    The shares of the Term events, measured at steps 1, 4, 16, 64, ...

    The gradient of each term is computed from the graph that the user's backward is about to use.
    That is left alone where it would be noticed: where a function of the graph is Python's, where
    activations are computed anew, where the user has hooks on gradients, in distributed runs.

    noticed: whether the user has such hooks and would notice.
    """

    makes = ("Term",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._due = 1
        self._tries = _TRIES
        self.noticed = False

    def install(self, patches: Patches) -> None:
        """Be told of hooks on tensors, modules, and on what is saved, as checkpoints have."""
        self._terms = self.recorder.watcher(LossFunctions)
        if not self.recorder.probe:
            return
        patches.replace(saved_tensors_hooks, "__enter__", tell_before(self._see_hook))
        patches.replace(torch.Tensor, "register_hook", tell_before(self._see_hook))
        patches.replace(torch.Tensor, "retain_grad", tell_before(self._see_hook))
        for hook in ("backward_hook", "full_backward_hook", "full_backward_pre_hook"):
            patches.replace(nn.Module, f"register_{hook}", tell_before(self._see_hook))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Measure the shares where they are due and the loss has several terms."""
        recorder = self.recorder
        if not recorder.probe or recorder.steps < self._due or len(self._terms.fresh) < 2:
            return
        if self.noticed or loss.numel() != 1 or _is_distributed():
            return
        self._tries -= 1
        measured = self._measure_shares(loss)
        for (tally, turn), share in measured.items():
            tally.shares.setdefault(turn, []).append(share)
        if measured or not self._tries:
            self._tries = _TRIES
            while self._due <= recorder.steps:
                self._due *= _GROWTH

    def _see_hook(self, *args: Any, **_: Any) -> None:
        """Note that the user, and not the recorder, has hooks."""
        self._notice(args)

    @shielded
    def _notice(self, args: tuple[Any, ...]) -> None:
        """Note that somebody else than we asks to be told what becomes of a tensor."""
        owners = [getattr(arg, "__module__", "") for arg in args[1:]]
        if not any(str(owner).startswith("trainguard.") for owner in owners):
            self.noticed = True

    def _measure_shares(self, loss: torch.Tensor) -> dict[Token, float]:
        """Return the share of each term that the loss has; nothing where that cannot be seen."""
        was, self.recorder.patches.active = self.recorder.patches.active, False
        try:
            groups = _terms_of(loss)
            chosen = self._parameters()
            if not chosen or not 2 <= len(groups) <= _MOST_TERMS or not _plain(loss):
                return {}
            with keep_streams():
                rest = _gradients(loss, chosen, [n for nodes in groups.values() for n in nodes])
                norms = {
                    token: _norms(_gradients(loss, chosen, _but(groups, token)), rest)
                    for token in groups
                }
                return _compare_terms(norms, _norms(rest, [None] * len(rest)))
        except Exception:  # noqa: BLE001 a graph that cannot be run twice is left alone
            return {}
        finally:
            self.recorder.patches.active = was

    def _parameters(self) -> list[torch.Tensor]:
        """Return evenly chosen weights that together are small beside the model."""
        held = [p for window in self.recorder.windows for p in window.parameters]
        able = [p for p in held if p.requires_grad and p.dim() > 1 and not p._backward_hooks]  # noqa: SLF001
        room = max(_ROOM, sum(p.numel() for p in held) // 100)
        chosen = []
        for parameter in able[:: -(-len(able) // _MOST_PARAMETERS) or 1]:
            if parameter.numel() <= room:
                chosen.append(parameter)
                room -= parameter.numel()
        return chosen


def _is_distributed() -> bool:
    """Say whether this process is one of several, whose wrappers count the passes backward."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _terms_of(loss: torch.Tensor) -> dict[Token, list[autograd_graph.Node]]:
    """Return the nodes of the loss functions that a loss is made of."""
    groups: dict[Token, list[autograd_graph.Node]] = {}
    for node in autograd_graph.below(loss.grad_fn, _NEAR, stop_at_marks=True):
        token = autograd_graph.token_at(node)
        if token is not None:
            groups.setdefault(token, []).append(node)
    return groups


def _but(groups: dict[Token, list[autograd_graph.Node]], kept: Token) -> list[autograd_graph.Node]:
    """Return the nodes of all terms but one."""
    return [node for token, nodes in groups.items() if token != kept for node in nodes]


def _plain(loss: torch.Tensor) -> bool:
    """Say whether a graph is small, and no function of it is one of Python's."""
    for count, node in enumerate(autograd_graph.below(loss.grad_fn, _MOST_NODES)):
        if count >= _MOST_NODES - 1 or isinstance(node, BackwardCFunction):
            return False
    return True


def _gradients(
    loss: torch.Tensor, parameters: list[torch.Tensor], silenced: list[autograd_graph.Node]
) -> Sequence[torch.Tensor | None]:
    """Return the gradients of a loss with nothing flowing through some of its nodes."""
    with ExitStack() as hooks:
        for node in silenced:
            hooks.callback(node.register_prehook(_zeros).remove)
        return _grad(loss, parameters, retain_graph=True, allow_unused=True)


def _zeros(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    """Return zeros in the place of gradients."""
    return tuple(None if g is None else torch.zeros_like(g) for g in gradients)


def _norms(gradients: Sequence[Any], others: Sequence[Any]) -> Norms:
    """Return the norm of each gradient less another one."""
    norms = []
    for gradient, other in zip(gradients, others, strict=True):
        if gradient is None:
            norms.append(torch.zeros(()))
            continue
        difference = gradient if other is None else gradient - other
        dense = difference.coalesce().values() if difference.is_sparse else difference
        norms.append(torch.linalg.vector_norm(dense.float()))
    first = norms[0]
    return [float(n) for n in torch.stack([n.to(first.device) for n in norms]).tolist()]


def _compare_terms(norms: dict[Token, Norms], rest: Norms) -> dict[Token, float]:
    """
    Return the norm of each term over that of the largest.

    Only the parameters that all terms reach are compared, where there are such. A term that reaches
    none of the chosen ones says nothing; nor do terms that are lost beside the rest of the loss.
    """
    reaching = {token: each for token, each in norms.items() if any(each)}
    shared = [i for i in range(len(rest)) if all(each[i] for each in reaching.values())]
    places = shared or range(len(rest))
    total = {token: hypot(*(each[i] for i in places)) for token, each in reaching.items()}
    largest = max(total.values(), default=0.0)
    lost = hypot(*(rest[i] for i in places)) * _RESOLVED
    if len(total) < 2 or not isfinite(largest) or min(total.values()) <= lost:
        return {}
    return {token: norm / largest for token, norm in total.items()}
