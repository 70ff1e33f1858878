"""What a run was asked: what a step would have done, had something been different."""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Event):
    """
    One question to a training step, answered by a forked child that went on with an edit.

    question: "nothing edited", "inputs edited", "padding edited", "a sample edited",
        "batch in another order", "labels exchanged", "ignored labels edited",
        "the same batch again", "one batch learned", "checkpoints bypassed", "other noise",
        "evaluation mode", "losses scaled", "autocast off", "compile off", "fused off",
        "gradients with their graph", "states with their graph", "terms without a graph",
        "scale of noise", "terms unread", "other rates",
        "terminal states edited", "batch divided", "batch accumulated", "a document edited",
        "relation 'NAME'" (a declared one).
    outcome: "answered", "void" (the edit says nothing here) or "given up".
    measured, reference: the number that the answer is about, and what it is held against.
    numbers: all of them, where the answer is a row (the losses of one batch, again and again).
    smallest: the smallest edit that shows it, in words, and what changes.
    enters: the first module or function in whose result an influence is seen, and the line; the
        variable of a term that is never read; what makes losses rise, "sign" or "rate".
    step: optimizer steps that had been made; label: what was edited; source: the line of the call.
    reason: why a question was void or given up; seconds: of processor time that it took.
    """

    question: str
    outcome: str
    measured: float = nan
    reference: float = nan
    numbers: tuple[float, ...] = ()
    smallest: str = ""
    enters: str = ""
    step: int = 0
    label: str = ""
    source: str = ""
    reason: str = ""
    seconds: float = 0.0
