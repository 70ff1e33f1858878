"""Asks questions of a few steps, within a budget, and believes none before the plainest one."""

import math
from collections.abc import Iterable
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.declared import RelationAsked
from trainguard.observe.loop.counterfactual.forking import Answer, Exit, Report
from trainguard.observe.loop.counterfactual.graph_cuts import (
    GradientsWithGraph,
    StatesHandedOver,
)
from trainguard.observe.loop.counterfactual.ignored_labels import IgnoredLabelsEdited
from trainguard.observe.loop.counterfactual.inputs import InputsEdited
from trainguard.observe.loop.counterfactual.labels import LabelsExchanged
from trainguard.observe.loop.counterfactual.learning import BatchLearned
from trainguard.observe.loop.counterfactual.order import BatchPermuted
from trainguard.observe.loop.counterfactual.padding import PaddingEdited
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.replay import BatchAgain
from trainguard.observe.loop.counterfactual.samples import SampleEdited
from trainguard.observe.loop.counterfactual.terminal_states import TerminalStatesEdited
from trainguard.observe.loop.counterfactual.variants import (
    AsItIs,
    CheckpointsBypassed,
    OtherNoise,
)
from trainguard.observe.loop.counterfactual.witness import total
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.user_line import caller

STEPS = (1, 2, 5, 12, 30, 75, 200, 600, 2000)  # made before it is asked; the first is cold
_CREDIT, _SHARE, _MOST = 0.75, 0.03, 30.0  # seconds at first; of the run's time; seconds at most
_LEAST = 0.15  # seconds of processor time that must be left for a step to be asked
_LONGEST = 10.0  # seconds that a child is given at most
_PAUSE = 5  # steps to wait where time is spent
_TURNS = 5  # steps after which optimizers that take turns have all stepped once
_ROUNDING = 1e-4  # of a loss: the child has one thread, and its sums another order
_PLAIN = "nothing edited"
# What is called by torch.func has tensors without a storage, that nobody can edit.
_transformed = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 no other way to ask
_REFUSALS = 3  # times that a question is given up before it is dropped


class Counterfactuals(Watcher):
    """The WhatIf events: questions to a few steps, which forked children answer."""

    makes = ("WhatIf",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._open: list[Question] = [
            *map(RelationAsked, recorder.relations),
            PaddingEdited(),
            (sample := SampleEdited()),
            BatchPermuted(sample),
            InputsEdited(),
            LabelsExchanged(),
            IgnoredLabelsEdited(),
            GradientsWithGraph(),
            StatesHandedOver(),
            CheckpointsBypassed(),
            OtherNoise(),
            BatchLearned(),
            BatchAgain(),
            TerminalStatesEdited(),
        ]
        self._told: list[WhatIf] = []
        self._waiting: tuple[float, list[WhatIf]] | None = None  # until the parent's loss is known
        self._steps = list(STEPS)
        self._spent, self._began = 0.0, process_time()
        self._credit = _MOST if recorder.relations else _CREDIT  # what is declared is asked
        self._price = 0.0  # seconds that the latest step took which was asked for as it is
        self._is_late = False  # whether a question had to wait for time
        if recorder.probe:
            recorder.asks = self.ask

    def ask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See that a module is about to be called; nothing of ours may reach its caller."""
        faults = self.recorder.faults
        faults.call(self, self._ask, ModuleCall(self.recorder, module, args, kwargs))
        if faults.is_off(self):
            self.recorder.asks = None

    def _ask(self, call: ModuleCall) -> None:
        """Ask what fits a call, at a few steps; in a child, return with it edited."""
        recorder, module = self.recorder, call.module
        if recorder.steps < self._steps[0] or _transformed() is not None:
            return
        if not torch.is_grad_enabled():
            self._ask_before(call)
            return
        if recorder.is_bare(module) or not any(p.requires_grad for p in module.parameters()):
            return
        self._is_late = self._left() < max(_LEAST, 2 * self._price)
        if self._is_late:
            self._steps[0] = recorder.steps + _PAUSE
            return
        self._steps = [step for step in self._steps if step > recorder.steps]
        fitting = [(q, label) for q in self._open if (label := q.fits(call))]
        trouble = forking.obstacle() if fitting else ""
        if trouble:
            self._told.append(self._event(_PLAIN, "given up", reason=trouble))
        elif fitting:
            self._ask_all(call, fitting)
        if recorder.asks is not None and (trouble or not self._steps or not self._open):
            recorder.asks = None

    def _ask_before(self, call: ModuleCall) -> None:
        """Ask what is about a call from which nothing is learned, such as one for targets."""
        able = [question for question in self._open if question.before_learning]
        fitting = [(q, label) for q in able if (label := q.fits(call))]
        if fitting and not forking.obstacle() and self._left() >= max(_LEAST, 2 * self._price):
            self._ask_all(call, fitting)

    def _ask_all(self, call: ModuleCall, fitting: list[tuple[Question, str]]) -> None:
        """Ask for the step as it is, then each question; a child returns from here at once."""
        plain = self._fork(call, AsItIs())
        if plain is None or plain.trouble:
            self._tell_trouble(plain)
            return
        loss, self._price = plain.report["loss"], plain.seconds
        told = [self._event(_PLAIN, "answered", measured=loss, seconds=plain.seconds)]
        told = [*(self._waiting[1] if self._waiting else ()), *told]  # of earlier calls of the step
        self._waiting = loss, told
        known: dict[str, Report] = {}  # what the children of this step have reported
        for question, label in fitting:
            if not question.applies(plain.report):
                if not question.waits or not self._has_others():
                    self._open.remove(question)
                continue
            shared = _settle_by(question, plain.report, known)
            if shared is not None:
                told.append(self._judge_answer(question, label, shared, Answer()))
                continue
            if self._left() < plain.seconds + (question.makes - 1) * plain.report["work"]:
                self._is_late = True
                continue
            answer = self._fork(call, question)
            if answer is None:
                return
            contrast = self._refine(call, question, plain.report, answer)
            if contrast is None:
                return
            known[question.name] = answer.report
            told.append(self._judge_answer(question, label, contrast, answer))

    def _has_others(self) -> bool:
        """Say whether another optimizer may have what this step has not: one that steps, or may."""
        windows = self.recorder.windows
        early = self.recorder.steps < _TURNS
        return sum(early or window.index > 0 for window in windows) > 1

    def _refine(
        self, call: ModuleCall, question: Question, plain: Report, answer: Answer
    ) -> Contrast | None:
        """Return what an answer says, after what it leads to was asked; in a child, nothing."""
        if answer.trouble or "void" in answer.report:
            return Contrast(void=answer.report.get("void", ""))
        contrast = question.compare(plain, answer.report)
        for more in question.follow_ups(contrast):
            edit = more.fits(call)
            reply = self._fork(call, more)
            if reply is None:
                return None
            usable = reply.report and "void" not in reply.report
            if question.needs_follow_ups and not usable:
                return Contrast(void=reply.trouble or reply.report["void"])
            refined = question.refine(contrast, edit, plain, reply.report) if usable else None
            if refined is not None:
                return refined
        return contrast

    def _tell_trouble(self, answer: Answer | None) -> None:
        """Note that a step could not be asked for as it is; children have nobody to tell."""
        if answer is not None:
            told = self._event(_PLAIN, "given up", reason=answer.trouble, seconds=answer.seconds)
            self._told.append(told)
            if sum(event.outcome == "given up" for event in self._told) >= _REFUSALS:
                self._open = []

    def _judge_answer(
        self, question: Question, label: str, contrast: Contrast, answer: Answer
    ) -> WhatIf:
        """Return what became of a question, and drop those that need no second answer."""
        tell = partial(self._event, question.name, label=label, seconds=answer.seconds)
        question.asks -= 1
        if answer.trouble:
            told, settled = tell("given up", reason=answer.trouble), False
        else:
            given_up = "void" in answer.report
            settled = given_up or (not contrast.void and question.is_settled(contrast))
            told = tell(
                "void" if contrast.void else "answered",
                measured=contrast.measured,
                reference=contrast.reference,
                numbers=contrast.numbers,
                smallest=contrast.smallest,
                reason=contrast.void,
            )
        if settled or question.asks <= 0:
            self._open.remove(question)
        return told

    def before_backward(self, loss: torch.Tensor) -> None:
        """Hold the child's loss against the parent's: where they differ, nothing is believed."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        theirs, told = waiting
        own = total(loss)
        exact = torch.get_num_threads() == 1
        if own == theirs or (not exact and math.isclose(own, theirs, rel_tol=_ROUNDING)):
            self._told += told
            return
        why = f"the step as it is gave {theirs!r} in a child, and {own!r} here"
        self._told.append(self._event(_PLAIN, "void", reason=why))
        self.recorder.asks, self._open = None, []

    def after_step(self, window: Window) -> Columns:
        """Let questions look around, where the next step is asked."""
        if self.recorder.asks is not None and self._steps[:1] == [self.recorder.steps + 1]:
            for question in self._open:
                question.prepare()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was asked, and what was answered."""
        yield from self._told
        if self._is_late and self._open:
            yield self._event(_PLAIN, "given up", reason="its share of the run's time was spent")

    def wait(self) -> None:
        """Let questions take as long as they may at most, from the beginning."""
        self._credit = _MOST

    def _left(self) -> float:
        """Return how many seconds of processor time may still be spent."""
        earned = self._credit + _SHARE * (process_time() - self._began)
        return min(_MOST, earned) - self._spent

    def _fork(self, call: ModuleCall, question: Question) -> Answer | None:
        """Fork for a question; in the child, return None."""
        seconds = min(_LONGEST, max(_LEAST, self._left()))
        answer = forking.fork(seconds, partial(_become, call, question))
        if answer is not None:
            self._spent += answer.seconds
        return answer

    def _event(self, question: str, outcome: str, **columns: Any) -> WhatIf:
        """Return what is told of a question."""
        return WhatIf(
            question=question,
            outcome=outcome,
            step=self.recorder.steps,
            source=caller(),
            **columns,
        )


def _settle_by(question: Question, plain: Report, known: dict[str, Report]) -> Contrast | None:
    """Return what the children of other questions say to one, where that settles it."""
    for name in question.settled_by:
        report = known.get(name, {})
        if report and "void" not in report:
            contrast = question.compare(plain, report)
            if not contrast.void and question.is_settled(contrast):
                return contrast
    return None


def _become(call: ModuleCall, question: Question, way_out: Exit) -> None:
    """Make a child the witness of a step that is edited."""
    witness = question.witness(call, way_out)
    question.edit(call, way_out)
    witness.take_over()
