"""A declared relation: the team's own edit of a batch, and what must hold then."""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from trainguard.observe.loop.counterfactual.forking import Exit, Report, look_apart
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Forward
from trainguard.subjects import relation as declared

_MOST = 2**24  # numbers of an output that are sent through the pipe


class RelationAsked(Question):
    """
    The batch is edited as a team has declared it.

    measured: 1 where the relation is broken, else 0; smallest: how, in words. Void where the edit
    changes shapes or dtypes, or where the relation itself fails.
    """

    needs_follow_ups = True

    def __init__(self, relation: declared.Relation, edits: bool = True) -> None:
        self.name = f"relation {relation.name!r}"
        self._relation, self._edits = relation, edits
        self._after: declared.Outcome | None = None

    def fits(self, call: ModuleCall) -> str:
        """Ask where a loader served a batch, or the model is given tensors."""
        batch = _batch_of(call)
        able = batch and all(is_editable(tensor) or tensor.numel() == 1 for tensor in batch)
        return "the batch" if able else ""

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let the team edit copies, and put them in place; random streams stay where they are."""
        if not self._edits:
            return
        batch = _batch_of(call)
        copies = [tensor.clone() for tensor in batch]
        own, numpys = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[]):
            edited = self._relation.edit(copies)
        random.setstate(own)
        np.random.set_state(numpys)
        edited = copies if edited is None else list(edited)
        if [(t.shape, t.dtype) for t in edited] != [(t.shape, t.dtype) for t in batch]:
            way_out.void("the edit does not return the same tensors in the same shapes and dtypes")
        with torch.no_grad():
            for tensor, new in zip(batch, edited, strict=True):
                tensor.copy_(new)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that reports what the model returned."""
        return _OutcomeWitness(call.recorder, way_out, call.module)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Keep the outcome with the edit until the one without is known."""
        self._after = edited["outcome"]
        return Contrast()

    def follow_ups(self, contrast: Contrast) -> "list[RelationAsked]":
        """Ask for the outcome of the step as it is."""
        return [RelationAsked(self._relation, edits=False)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Let the team's code hold the two against each other, in a child too."""
        before, after, self._after = edited["outcome"], self._after, None
        told, _ = look_apart(lambda: _find_breach(self._relation, before, after))
        if told is None:
            return Contrast(void="then(before, after) did not come to an end")
        raised, breach = told
        return Contrast(float(bool(breach)), 0.0, void=raised, smallest=breach)

    def is_settled(self, contrast: Contrast) -> bool:
        """One breach is enough."""
        return contrast.measured > 0


class _OutcomeWitness(Witness):
    """Reports what the first call of the module returned, and the loss."""

    returned_whole: Any = None

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Copy what the module returns."""
        if module is self.module and self.returned_whole is None:
            self.returned_whole = tree_map(_copy, output)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report it."""
        self.way_out.report(outcome=declared.Outcome(self.returned_whole, self.loss))


def _copy(value: Any) -> Any:
    """Return a tensor without its graph, and anything else as it is where it can be copied."""
    if isinstance(value, torch.Tensor):
        if value.numel() > _MOST:
            raise ValueError("the output is too large to be compared")
        return value.detach().cpu().clone()
    return copy.copy(value)


def _batch_of(call: ModuleCall) -> list[torch.Tensor]:
    """Return what a loader served, if the model is given some of it, or what it is given."""
    recent = call.recorder.watcher(Batches).recent
    tensors = call.tensors()
    if recent and any(recent[-1].has(tensor) for tensor in tensors):
        return recent[-1].alive()
    return tensors


def _find_breach(relation: declared.Relation, before: Any, after: Any) -> tuple[str, str]:
    """Return what `then` raised, if it did, and how the relation is broken, if it is."""
    try:
        return "", relation.find_breach(before, after)
    except Exception as error:  # noqa: BLE001 whatever the team's code raises is told
        return f"then(before, after) raised {type(error).__name__}: {error}"[:200], ""
