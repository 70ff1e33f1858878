"""Asks all open questions of a step, each in a child, and keeps what is still open."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, isclose
from time import monotonic
from typing import Any, NamedTuple

import torch

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.deputy import Mailbox
from trainguard.observe.loop.counterfactual.forking import Answer, Exit, Report
from trainguard.observe.loop.counterfactual.influence import SeenResult, Traced, find_entry
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    Shrinking,
)
from trainguard.observe.loop.counterfactual.sealing import unrefused
from trainguard.observe.loop.counterfactual.variants import AsItIs, count_compiled
from trainguard.observe.tools.user_line import caller

PLAIN = "nothing edited"
_LEAST = 0.15  # seconds of processor time that must be left for a step to be asked
_LONGEST = 10.0  # seconds that a child is given at most
_ASKED_ON = 3  # times the price of a step: those up to the last one that is asked on
_TURNS = 5  # steps after which optimizers that take turns have all stepped once
_OVER = "the run was over before it had answered"
_ROUNDING = 1e-4  # of a loss: the child has one thread, and its sums another order
_REFUSALS = 3  # times that a step could not be asked for as it is, before nothing is asked


class Round(NamedTuple):
    """
    What was asked of one step.

    loss: of the step as it is; none where that could not be asked for. told: what became of all.
    """

    step: int
    loss: float | None
    told: tuple[WhatIf, ...]


class Inquiry:
    """
    The questions of a run, which of them are open, and what the latest deputy was told.

    spent: seconds of processor time, of at most so many. price: those of the latest step that was
    asked for as it is. reached: the latest step of which all was asked. is_late: whether a
    question had to wait for time. refusals: steps that could not be asked for as they are.
    starves: whether children of the least priority got no time; pressing: seconds of those that
    then had the usual one, and may have by now.
    """

    def __init__(self, questions: Sequence[Question], draws: bool = False) -> None:
        self._questions = list(questions)
        self._compiled = count_compiled()
        self.open = list(questions)
        self.rounds: list[Round] = []
        self.spent, self.price, self.most = 0.0, 0.0, inf
        self.reached, self.refusals, self.is_late = 0, 0, False
        self.starves, self.pressing = False, 0.0
        self._may_press: Callable[[], float] = float
        self._mailbox: Mailbox | None = None
        self._hurries = self._is_cut = False
        self._drawing = [q for q in questions if isinstance(q, Shrinking)] if draws else []
        for question in self._drawing:
            question.is_drawn = True

    def begin(self, mailbox: Mailbox, may_press: Callable[[], float]) -> None:
        """Begin to ask, in a deputy; it is told how many seconds may be pressing."""
        self._mailbox, self.rounds, self._may_press = mailbox, [], may_press

    def put(self, **more: Any) -> None:
        """Leave word of how far it has come."""
        assert self._mailbox is not None
        kept = {self._questions.index(question): question.state() for question in self.open}
        names = (
            "rounds",
            "spent",
            "price",
            "reached",
            "refusals",
            "is_late",
            "starves",
            "pressing",
        )
        self._mailbox.put(open=kept, **{name: getattr(self, name) for name in names}, **more)

    def take(self, words: Report) -> None:
        """Come as far as a deputy has."""
        kept = words.pop("open")
        self.open = [self._questions[place] for place in kept]
        for question, state in zip(self.open, kept.values(), strict=True):
            vars(question).update(state)
        vars(self).update({name: words[name] for name in vars(self).keys() & words.keys()})

    def fitting(self, call: ModuleCall, able: Sequence[Question]) -> list[tuple[Question, str]]:
        """Return which open questions fit a call, with what would be edited."""
        return [(q, label) for q in able if q in self.open and (label := q.fits(call))]

    def has_time(self) -> bool:
        """Say whether enough time is left for a step to be asked."""
        self.is_late = self.left() < max(_LEAST, 2 * self.price)
        return not self.is_late

    def ask(self, call: ModuleCall, fitting: list[tuple[Question, str]], *, asks_on: bool) -> bool:
        """
        Ask for the step as it is, then each question; a child returns from here at once.

        On a busy machine, and where it asks on in a later step, what takes several steps is put off
        until what needs a second answer has it: that would come too late.
        """
        plain = self._fork(call, AsItIs(self._compiled), self.price)
        if plain is None:
            return False
        event = partial(_event, call)
        if plain.trouble:
            self.refusals += 1
            told = event(PLAIN, "given up", reason=plain.trouble, seconds=plain.seconds)
            self.rounds.append(Round(call.recorder.steps, None, (told,)))
            self.open = self.open if self.refusals < _REFUSALS else []
            return True
        loss, self.price = plain.report["loss"], plain.seconds
        told = event(PLAIN, "answered", measured=loss, seconds=plain.seconds)
        self.rounds.append(Round(call.recorder.steps, loss, (told,)))
        known: dict[str, Report] = {}  # what the children of this step have reported
        return all(
            self._ask(call, q, label, plain, known)
            for q, label in sorted(fitting, key=lambda each: each[0].makes > 1)
            if not (asks_on and self.starves and q.makes > 1 and self._waits_for_another())
        )

    def go_on(self, become: Callable[[Exit], None]) -> bool:
        """Let a child ask on, of later steps; return whether this is not the child."""
        assert self._mailbox is not None
        return self._try(become, _ASKED_ON * self.price, (self._mailbox.file,)) is not None

    def _waits_for_another(self) -> bool:
        """Say whether something was answered in this step that needs a second answer."""
        told = {event.question for event in self.rounds[-1].told if event.outcome == "answered"}
        return any(question.makes == 1 and question.name in told for question in self.open)

    def left(self) -> float:
        """Return how many seconds of processor time may still be spent."""
        if self._mailbox is not None and not self._hurries:
            patience = self._mailbox.patience()
            self._hurries = patience < inf
            self.most = min(self.most, patience)
        return self.most - self.spent

    def _ask(
        self,
        call: ModuleCall,
        question: Question,
        label: str,
        plain: Answer,
        known: dict[str, Report],
    ) -> bool:
        """Ask one question, where it applies; return whether this is not its child."""
        self.put()
        if not question.applies(plain.report):
            if not question.waits or not _has_others(call):
                self.open.remove(question)
            return True
        shared = _settle_by(question, plain.report, known)
        if shared is not None:
            self._judge(call, question, label, shared, Answer())
            return True
        price = plain.seconds + (question.makes - 1) * plain.report["work"]
        if self.left() < price:
            self.is_late = True
            return True
        answer = self._fork(call, question, price)
        if answer is None:
            return False
        contrast = self._refine(call, question, plain.report, answer)
        contrast = contrast and self._trace(call, question, contrast, plain.report, answer)
        if contrast is None:
            return False
        known[question.name] = answer.report
        self._judge(call, question, label, contrast, answer)
        return True

    def _refine(
        self, call: ModuleCall, question: Question, plain: Report, answer: Answer
    ) -> Contrast | None:
        """Return what an answer says, after what it leads to was asked; in a child, nothing."""
        if answer.trouble or "void" in answer.report:
            return Contrast(void=answer.report.get("void", ""))
        contrast = question.compare(plain, answer.report)
        for more in question.follow_ups(contrast):
            edit = more.fits(call)
            reply = self._fork(call, more, answer.seconds)
            if reply is None:
                return None
            usable = reply.report and "void" not in reply.report
            if question.needs_follow_ups and not usable:
                return Contrast(void=reply.trouble or reply.report["void"])
            refined = question.refine(contrast, edit, plain, reply.report) if usable else None
            if refined is not None:
                return refined
        if question in self._drawing and not contrast.void:
            assert isinstance(question, Shrinking)
            return self._draw(call, question, plain, contrast, answer.seconds)
        return question.conclude(contrast)

    def _draw(
        self, call: ModuleCall, question: Shrinking, plain: Report, contrast: Contrast, price: float
    ) -> Contrast | None:
        """Let edits be drawn, and tell of the smallest that breaks; in a child, return nothing."""
        with unrefused():
            from trainguard.observe.loop.counterfactual import drawn_edits  # late: Hypothesis
        found: dict[str, tuple[Contrast, str]] = {}

        def breaks(edit: Mapping[int, int]) -> bool:
            """Ask about an edit."""
            drawn = question.with_edit(edit)
            label = drawn.fits(call)
            reply = self._fork(call, drawn, price) if self.left() > price else Answer()
            if reply is None:
                raise drawn_edits.ForkedWithin
            if not reply.report or "void" in reply.report:
                return False
            told = question.compare(plain, reply.report)
            found[str(edit)] = told, question.tell(label, plain, reply.report)
            return question.is_broken(told)

        try:
            edit = drawn_edits.find_smallest(question.count, question.choices, breaks)
        except drawn_edits.ForkedWithin:
            return None
        if edit is not None:
            told, words = found[str(edit)]
            contrast = contrast if question.is_broken(contrast) else told
            question.shows(words)
        return question.conclude(contrast)

    def _trace(
        self,
        call: ModuleCall,
        question: Question,
        contrast: Contrast,
        plain: Report,
        answer: Answer,
    ) -> Contrast | None:
        """Add where the influence that an answer tells of enters; in a child, return nothing."""
        if contrast.void or answer.trouble or not question.is_traced(contrast):
            return contrast
        seen: list[Sequence[SeenResult]] = []
        for edits in (False, True):
            reply = self._fork(call, Traced(question, edits=edits), answer.seconds)
            if reply is None:
                return None
            seen.append(reply.report.get("results", ()))
        return contrast._replace(enters=find_entry(seen[0], seen[1], plain["rounding"]))

    def _judge(
        self, call: ModuleCall, question: Question, label: str, contrast: Contrast, answer: Answer
    ) -> None:
        """Tell what became of a question, and drop those that need no second answer."""
        tell = partial(_event, call, question.name, label=label, seconds=answer.seconds)
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
                enters=contrast.enters,
                reason=contrast.void,
            )
        if settled or question.asks <= 0:
            self.open.remove(question)
        latest = self.rounds.pop()
        self.rounds.append(latest._replace(told=(*latest.told, told)))

    def _fork(self, call: ModuleCall, question: Question, price: float) -> Answer | None:
        """Fork for a question; in the child, return None."""
        return self._try(partial(_become, call, question), price)

    def _try(
        self, become: Callable[[Exit], None], price: float, keep: tuple[int, ...] = ()
    ) -> Answer | None:
        """
        Fork, for what takes some seconds; in haste where the training waits, or others run instead.

        A child with the least priority is then ended, and another one has the usual priority.
        """
        seconds = min(_LONGEST, max(_LEAST, self.left()))
        presses = self.starves and self._can_press(price)
        cut = None if self._hurries or presses else partial(self._cuts, monotonic(), price)
        self._is_cut = False
        answer = forking.fork(seconds, become, keep, cut)
        if answer is None:
            return None
        self.spent += answer.seconds
        self.pressing += answer.seconds if presses else 0.0
        if not (answer.trouble and self._is_cut):
            return answer
        if self.left() < _LEAST:
            return Answer(trouble=_OVER, seconds=answer.seconds)
        return self._try(become, price, keep)

    def _cuts(self, began: float, price: float, child: int) -> bool:
        """Say whether to end a child for another one, with more priority."""
        assert self._mailbox is not None
        self.starves |= forking.starves(child, began)
        self._is_cut = self._mailbox.patience() < inf or (self.starves and self._can_press(price))
        return self._is_cut

    def _can_press(self, price: float) -> bool:
        """Say whether what takes some seconds may have the usual priority."""
        return self.pressing + price <= self._may_press()


def agree(own: float, child: float) -> bool:
    """Say whether a loss is that of a child: to the last bit, but for several threads' order."""
    exact = torch.get_num_threads() == 1
    return isclose(own, child, rel_tol=0.0 if exact else _ROUNDING)


def _event(call: ModuleCall, question: str, outcome: str, **columns: Any) -> WhatIf:
    """Return what is told of a question."""
    step = call.recorder.steps
    return WhatIf(question=question, outcome=outcome, step=step, source=caller(), **columns)


def _has_others(call: ModuleCall) -> bool:
    """Say whether another optimizer may have what this step has not: one that steps, or may."""
    early = call.recorder.steps < _TURNS
    return sum(early or window.index > 0 for window in call.recorder.windows) > 1


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
