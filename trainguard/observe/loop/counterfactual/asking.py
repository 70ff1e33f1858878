"""Asks questions of a few steps, within a budget, and believes none before the plainest one."""

import math
import os
from collections.abc import Iterable
from functools import partial
from time import monotonic, process_time
from typing import Any, NoReturn

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.accumulation import BatchAccumulated
from trainguard.observe.loop.counterfactual.batch_parts import BatchDivided
from trainguard.observe.loop.counterfactual.declared import RelationAsked
from trainguard.observe.loop.counterfactual.deputy import Deputy, Mailbox, give_way
from trainguard.observe.loop.counterfactual.documents import DocumentEdited
from trainguard.observe.loop.counterfactual.evaluation_mode import EvaluationMode
from trainguard.observe.loop.counterfactual.forking import Exit
from trainguard.observe.loop.counterfactual.graph_cuts import (
    GradientsWithGraph,
    StatesHandedOver,
)
from trainguard.observe.loop.counterfactual.graphless_terms import TermsWithoutGraph
from trainguard.observe.loop.counterfactual.ignored_labels import IgnoredLabelsEdited
from trainguard.observe.loop.counterfactual.inputs import InputsEdited
from trainguard.observe.loop.counterfactual.inquiry import PLAIN, Inquiry, Round, agree
from trainguard.observe.loop.counterfactual.labels import LabelsExchanged
from trainguard.observe.loop.counterfactual.learning import BatchLearned
from trainguard.observe.loop.counterfactual.noise_scale import ScaleOfNoise
from trainguard.observe.loop.counterfactual.order import BatchPermuted
from trainguard.observe.loop.counterfactual.padding import PaddingEdited
from trainguard.observe.loop.counterfactual.question import ModuleCall, Question
from trainguard.observe.loop.counterfactual.replay import BatchAgain
from trainguard.observe.loop.counterfactual.samples import SampleEdited
from trainguard.observe.loop.counterfactual.shortcuts import AutocastOff, CompileOff, FusedOff
from trainguard.observe.loop.counterfactual.terminal_states import TerminalStatesEdited
from trainguard.observe.loop.counterfactual.unread_terms import TermsUnread
from trainguard.observe.loop.counterfactual.variants import (
    CheckpointsBypassed,
    LossesScaled,
    OtherNoise,
)
from trainguard.observe.loop.counterfactual.witness import total
from trainguard.observe.loop.faults import describe
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

STEPS = (1, 2, 5, 12, 30, 75, 200, 600, 2000)  # made before it is asked; the first is cold
_EARLY = 5  # steps up to which a deputy goes on by itself, so that one fork is enough for all
# Seconds of the processor that the run may lose at first, and a share of what it takes.
_CREDIT, _SHARE = 0.05, 0.03
_PATIENCE = 0.75  # seconds that deputies may have taken beside that share when it ends
_SHORT = 200  # steps: a run of fewer waits so long for answers, others that share by the clock
_BEHIND, _BEHIND_SHARE = 3.0, 0.1  # seconds that deputies may take beside it; a share
_MOST = 30.0  # seconds of each at most
_PAUSE = 5  # steps to wait where time is spent, or a deputy is still asking
# What is called by torch.func has tensors without a storage, that nobody can edit.


class Counterfactuals(Watcher):
    """
    The WhatIf events: questions to a few steps, which forked children answer.

    A deputy asks them while the run goes on. It goes on too, and asks the next steps of the run's
    beginning by itself.
    """

    makes = ("WhatIf",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._inquiry = Inquiry(_questions(recorder.relations), recorder.thorough)
        self._deputy: Deputy | None = None
        self._sent = 0
        self._until = 0  # in a deputy and what goes on for it: the last step that it asks
        self._goes_on = False  # whether this process goes on for a deputy
        self._told: list[WhatIf] = []
        self._pending: list[Round] = []  # until the run's own loss is known
        self._losses: dict[int, float] = {}  # of the run, by step
        self._heard: int | None = None  # the step whose loss comes next
        self._steps = list(STEPS)
        self._lost, self._began = 0.0, process_time()
        self._away, self._clock = 0.0, monotonic()  # the same by the clock
        # What is declared is asked, and a thorough run may take as long as it takes.
        self._credit = _MOST if recorder.relations or recorder.thorough else _CREDIT
        self._is_late = False  # whether a question had to wait for time
        self._threads = 1  # of the run's own operations
        if recorder.probe:
            recorder.asks = self.ask

    def install(self, patches: Patches) -> None:
        """Give way to a script that waits for its own children, and leave no deputy behind."""
        if self.recorder.asks is not None:
            give_way(patches, lambda: self.recorder.faults.call(self, self._gather))
            patches.on_undo(lambda: self.recorder.faults.put_back(self, self._end_if_deaf))

    def ask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See that a module is about to be called; nothing of ours may reach its caller."""
        faults = self.recorder.faults
        faults.call(self, self._ask, ModuleCall(self.recorder, module, args, kwargs))
        if faults.is_off(self):
            self._stop()

    def _ask(self, call: ModuleCall) -> None:
        """Ask what fits a call, at a few steps; in a child, return with it edited."""
        recorder, module = self.recorder, call.module
        if recorder.steps < self._steps[0] or is_transforming():
            return
        learns = torch.is_grad_enabled()
        trained = any(parameter.requires_grad for parameter in module.parameters())
        if learns and (recorder.is_bare(module) or not trained):
            return
        if self._goes_on:
            self._serve(call)
            return
        self._heard = recorder.steps if learns else self._heard
        if self._is_served(learns):
            return
        has_time = self._has_time()
        if has_time:
            self._send(call, learns)
        elif learns:
            self._is_late, self._steps[0] = True, recorder.steps + _PAUSE

    def _is_served(self, learns: bool) -> bool:
        """Say whether a deputy has asked this step, or will, or still asks another one."""
        steps = self.recorder.steps
        waits = self._credit == _MOST and self._deputy is not None and steps > self._deputy.until
        if self._deputy is not None and (waits or self._deputy.has_ended()):
            self._gather(self._patience())
        served = steps <= max(self._inquiry.reached, self._deputy.until if self._deputy else 0)
        if learns and served:
            self._steps = [step for step in self._steps if step > steps]
        elif learns and self._deputy is not None:
            self._steps[0] = steps + _PAUSE
        return served or self._deputy is not None or self.recorder.asks is None

    def _send(self, call: ModuleCall, learns: bool) -> None:
        """Send a deputy, where a question fits a call; in a child of it, return with it edited."""
        recorder, inquiry = self.recorder, self._inquiry
        self._steps = [step for step in self._steps if step > recorder.steps or not learns]
        fits = any(question.fits(call) for question in reversed(_able(inquiry.open, learns)))
        trouble = forking.obstacle() if fits else ""
        if trouble and learns:
            self._told.append(self._event("given up", trouble))
        elif fits and not trouble:
            began, inquiry.rounds, self._is_late = process_time(), [], False
            clock = monotonic()
            most = max(_BEHIND, self._credit) + _BEHIND_SHARE * (began - self._began)
            inquiry.most = min(_MOST, most)
            self._until, self._threads = max(_EARLY, recorder.steps), torch.get_num_threads()
            deputy = Deputy.send(_MOST, partial(self._stand_in, call), self._until)
            if deputy is None:
                return
            self._deputy, self._sent = deputy, self._sent + 1
            self._lost += process_time() - began
            self._away += monotonic() - clock
        if learns and (trouble or not self._steps or not inquiry.open):
            recorder.asks = None

    def _stand_in(self, call: ModuleCall, _: Exit, mailbox: Mailbox) -> None:
        """Be a deputy: ask, have a child go on to the next steps, and end."""
        try:
            self._deputy, self._heard = None, None
            self._inquiry.begin(mailbox, self._may_press)
            if not self._ask_here(call):
                return
            if self._asks_more() and not self._inquiry.go_on(self._go_on):
                return
            mailbox.put(done=True)
        except BaseException as error:  # noqa: BLE001 the training is told, and goes on
            mailbox.put(fault=describe(error))
        os._exit(0)

    def _go_on(self, _: Exit) -> None:
        """Go on with the training, watched as far as the next questions need it."""
        recorder = self.recorder
        recorder.tell_only(recorder.watcher(Batches), self)
        recorder.watcher(LossFunctions).listeners[:] = []
        recorder.asks, recorder.leave = self.ask, _leave
        self._goes_on = True

    def _serve(self, call: ModuleCall) -> None:
        """Ask in a process that goes on for a deputy, which ends with the last step to be asked."""
        try:
            if self._ask_here(call) and not self._asks_more():
                _leave()
        except BaseException as error:  # noqa: BLE001 as above
            self._inquiry.put(fault=describe(error))
            _leave()

    def _ask_here(self, call: ModuleCall) -> bool:
        """Ask what fits a call; a child returns from here at once, with False."""
        inquiry, steps, learns = self._inquiry, self.recorder.steps, torch.is_grad_enabled()
        if learns:
            self._steps = [step for step in self._steps if step > steps]
        fitting = inquiry.fitting(call, _able(inquiry.open, learns))
        later = bool(self._steps) and self._steps[0] <= self._until
        if fitting and inquiry.has_time() and not inquiry.ask(call, fitting, asks_on=later):
            return False
        inquiry.reached = steps if learns else inquiry.reached
        inquiry.put()
        return True

    def _asks_more(self) -> bool:
        """Say whether a deputy has more to ask, as far as it goes."""
        able = not self._inquiry.rounds or self._inquiry.rounds[-1].loss is not None
        return bool(able and self._inquiry.open and self._steps and self._steps[0] <= self._until)

    def _gather(self, patience: float = 0.0, wait: float = math.inf) -> None:
        """Take what the deputy has found, once deputies took so much processor time in all."""
        deputy, self._deputy = self._deputy, None
        if deputy is None:
            return
        began = process_time()
        words = deputy.end(patience, wait)
        self._lost += process_time() - began
        if "fault" in words:
            self.recorder.faults.switch_off(self, words["fault"])
            return
        inquiry, spent = self._inquiry, self._inquiry.spent + deputy.spent
        if "open" in words:
            inquiry.take(words)
        inquiry.spent = spent
        if "done" not in words and not inquiry.rounds:
            why = words.get("trouble") or deputy.ending()
            self._told.append(self._event("given up", why))
        self._is_late |= "done" not in words or inquiry.is_late
        self._pending += inquiry.rounds
        self._believe()

    def _believe(self) -> None:
        """Believe what was asked of steps whose loss was the same, to the last bit, in a child."""
        waiting, self._pending = self._pending, []
        for each in waiting:
            own = self._losses.get(each.step)
            if each.loss is None:
                self._told += each.told
            elif own is None:
                self._pending.append(each)
            elif agree(own, each.loss):
                self._told += each.told
            else:
                why = f"the step as it is gave {each.loss!r} in a child, and {own!r} here"
                self._told.append(self._event("void", why, each.step))
                self._inquiry.open, self._pending = [], []
                self._stop()
                return

    def before_backward(self, loss: torch.Tensor) -> None:
        """Remember the run's own loss of a step that was asked."""
        if self._heard is not None:
            self._losses.setdefault(self._heard, total(loss))
            self._heard = None
            self._believe()

    def after_step(self, window: Window) -> Columns:
        """Let questions look around, where the next step is asked."""
        steps = self.recorder.steps + 1
        if self._goes_on and steps > self._until:
            _leave()
        if self.recorder.asks is None or self._steps[:1] != [steps] or self._deputy is not None:
            return {}
        try:
            for question in self._inquiry.open:
                question.prepare(window)
        except Exception as error:
            if self._goes_on:
                self._inquiry.put(fault=describe(error))
                _leave()
            raise
        return {}

    def so_far(self) -> Iterable[Event]:
        """Return what was answered by now."""
        if self._deputy is not None and self._deputy.has_ended():
            self._gather()
        return list(self._told)

    def finish(self) -> Iterable[Event]:
        """Return what was asked, and what was answered."""
        self._gather(self._patience(), self._wait())
        yield from self._told
        if self._is_late and self._inquiry.open:
            yield self._event(
                "given up", "its share of the run's time was spent (--what-if gives more)"
            )

    def wait(self) -> None:
        """Let questions take as long as they may at most, from the beginning."""
        self._credit = _MOST

    def _has_time(self) -> bool:
        """Say whether the run has time to lose for a deputy, which has time to ask."""
        left = self._earned(self._credit) - self._lost
        return left > self._lost / max(1, self._sent) and self._inquiry.has_time()

    def _patience(self) -> float:
        """Return what deputies may take in all of the processor once the run waits for one."""
        return self._earned(max(self._credit, _PATIENCE))

    def _wait(self) -> float:
        """Return how many seconds by the clock the run may wait for a deputy once it is over."""
        if self._credit == _MOST or self.recorder.steps < _SHORT:
            return math.inf
        pressing = self._inquiry.pressing
        if self._deputy is not None:
            pressing = self._deputy.peek().get("pressing", pressing)
        return max(0.0, self._spared(0.0) - pressing / self._cores_each())

    def _may_press(self) -> float:
        """Return how many seconds children may have taken by now with the usual priority."""
        return self._spared(self._credit) * self._cores_each()

    def _spared(self, credit: float) -> float:
        """Return how many seconds by the clock the run may lose yet, but for pressing children."""
        return credit + min(_MOST, _SHARE * (monotonic() - self._clock)) - self._away

    def _cores_each(self) -> float:
        """Return over how many cores a thread of the run spreads what it loses: others run too."""
        cores = len(os.sched_getaffinity(0))
        return cores / min(self._threads, cores)

    def _earned(self, credit: float) -> float:
        """Return how many seconds the run may have lost by now."""
        return min(_MOST, credit + _SHARE * (process_time() - self._began))

    def _stop(self) -> None:
        """Ask nothing any more."""
        self.recorder.asks = None
        if self._deputy is not None:
            self._deputy.end()
            self._deputy = None

    def _end_if_deaf(self) -> None:
        """End the deputy of a recording that looks at nothing any more, and will not gather."""
        if self.recorder.patches.blind or self.recorder.faults.is_off(self):
            self._stop()

    def _event(self, outcome: str, reason: str, step: int | None = None) -> WhatIf:
        """Return what is told of a step as it is."""
        steps = self.recorder.steps if step is None else step
        return WhatIf(question=PLAIN, outcome=outcome, step=steps, source=caller(), reason=reason)


def _questions(relations: Iterable[Any]) -> list[Question]:
    """Return all questions, in the order in which they are asked."""
    return [
        *map(RelationAsked, relations),
        PaddingEdited(),
        DocumentEdited(),
        (sample := SampleEdited()),
        BatchPermuted(sample),
        InputsEdited(),
        LabelsExchanged(),
        IgnoredLabelsEdited(),
        GradientsWithGraph(),
        StatesHandedOver(),
        TermsWithoutGraph(),
        ScaleOfNoise(),
        CheckpointsBypassed(),
        OtherNoise(),
        EvaluationMode(),
        LossesScaled(),
        AutocastOff(),
        CompileOff(),
        FusedOff(),
        BatchLearned(),
        BatchAgain(),
        TerminalStatesEdited(),
        BatchDivided(),
        BatchAccumulated(),
        TermsUnread(),
    ]


def _able(questions: list[Question], learns: bool) -> list[Question]:
    """Return what can be asked: little of a call from which nothing is learned, as for targets."""
    return [question for question in questions if learns or question.before_learning]


def _leave(_: BaseException | None = None) -> NoReturn:
    """End a process that goes on for a deputy; all that it found is in the mailbox."""
    os._exit(0)
