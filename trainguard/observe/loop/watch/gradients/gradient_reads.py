"""Watches lines of the user's code that read gradients, for those that find them cleared."""

import linecache
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import get_default_nowrap_functions

from trainguard.events.base import Event
from trainguard.events.loop import Read
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import foreign, place_of

_MOST_LINES = 256
_CHECKED = 8  # steps, surveyed or not, at which a line is checked for gradients of zeros
_MOST_LATER = 256
_COMPREHENSIONS = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")  # in their function
SILENT = re.compile(r"[/\\]torch[/\\](?:optim|amp|utils[/\\]hooks)")
SILENT_NAMES = ("zero_grad", "step")
_MEASURES = re.compile("norm|clip")
_CLEARS = re.compile(
    r"\.grad(?:\.data)?(?:\s*=\s*(?:None|torch\.zeros)|\.(?:zero_|fill_)\()"
    r"|\bdel\s+\S+\.grad\b|\.detach_\("
)


# Gradients that are written by hand are added to what was cleared.
_ADDS = re.compile(r"\.grad(?:\.data)?(?:\s*[-+]=|\.(?:add_|sub_|copy_)\()")


@dataclass(slots=True)
class _Line:
    """A line of the user's code, the latest step at which it read, and what it found there."""

    source: str
    code: str
    called: str = ""
    empty: int = 0
    full: int = 0
    step: int = -1
    was_full: bool = False
    checks: int = 0
    checked: int = -1


@dataclass(slots=True)
class _Turn:
    """
    The time since an optimizer's last step, which used the gradients of some parameters.

    waiting: whether no backward is known to have reached the optimizer since.
    """

    window: Window
    waiting: bool = True
    used: dict[int, "_UsedGradient"] = field(default_factory=dict)

    def is_cleared(self) -> bool:
        """Say whether none of the gradients is there, neither the used one nor a new one."""
        known = (used.parameter() for used in self.used.values())
        return all(parameter is None or gradient_of(parameter) is None for parameter in known)


@dataclass(slots=True)  # not frozen: many are made in each step
class _UsedGradient:
    """A parameter whose gradient a step has used, and which gradient that was."""

    parameter: weakref.ref[torch.Tensor]
    gradient: int
    version: int
    turn: _Turn


class _WatchedProperty(property):
    """A property that says, as the descriptor under it, to which class it belongs."""

    __objclass__: type
    __name__ = "grad"


class GradientReads(Watcher):
    """
    The Read events.

    A gradient is in question from the step that used it to the next backward of its optimizer: only
    then can it have been cleared. Once some line has found one cleared, all reads are looked at, so
    that it is known how often the same line finds them there. on_read: told of every read, by any
    line, with the frame of the reader.
    """

    makes = ("Read",)
    relies_on = ("Gradients",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._question: dict[int, _UsedGradient] = {}
        self._turns: dict[str, _Turn] = {}
        self._lines: dict[tuple[CodeType, int], _Line | None] = {}
        self._silent: set[CodeType] = set()
        self._later: list[tuple[_Line, int, torch.Tensor]] = []
        self._alert = False
        self._hidden = False
        self._looks = self._look
        self.on_read: Callable[[FrameType], None] | None = None
        self._until = 0  # the step after the latest that was recorded

    def install(self, patches: Patches) -> None:
        """Put a property over the gradient of tensors; setting and deleting it stay C's own."""
        unwrapped = get_default_nowrap_functions()  # filled before, so that C's own stays in it
        patches.replace(torch.Tensor, "grad", self._property)
        self.recorder.at_unwatched.append(self._forget)
        getter = vars(torch.Tensor)["grad"].__get__
        unwrapped.add(getter)  # subclasses of Tensor pass the result on as it is
        patches.on_undo(lambda: unwrapped.discard(getter))

    def after_backward(self, loss: torch.Tensor) -> None:
        """Gradients that have arrived are no longer in question."""
        self._hide()
        for window in self.recorder.windows:
            turn = self._turns.get(window.name)
            if turn is None or not turn.waiting or window.fresh:
                continue
            turn.waiting = False
            if not self._alert and not window.is_surveyed:
                for key in turn.used:
                    self._question.pop(key, None)

    def after_step(self, window: Window) -> Columns:
        """Put in question the gradients that the step has used."""
        if window.optimizer is None:  # a step by hand is known only when the next backward comes
            return {}
        old = self._turns.get(window.name)
        for key in old.used if old is not None else ():
            self._question.pop(key, None)
        turn = self._turns[window.name] = _Turn(window)
        self._until = self.recorder.steps + 1
        turn.used = {
            id(p): _UsedGradient(weakref.ref(p), id(g), g._version, turn)  # noqa: SLF001 as above
            for p, g in window.gradients()
        }
        self._question |= turn.used
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the lines that were seen."""
        later, self._later = self._later, []
        there: dict[tuple[int, int], tuple[_Line, bool]] = {}
        for line, step, any_there in later:
            _, was = there.get((id(line), step), (line, False))
            there[id(line), step] = (line, was or bool(any_there))
        for line, full in there.values():
            line.full, line.empty = line.full + full, line.empty + (not full)
        for known in self._lines.values():
            if known is not None and (known.empty or known.full):
                yield Read(
                    source=known.source,
                    code=known.code,
                    empty=known.empty,
                    full=known.full,
                    called=known.called,
                )

    def _property(self, descriptor: Any) -> property:
        """Return a property that looks at reads of gradients that are in question."""
        question, silent, reads = self._question, self._silent, self
        frame_of = sys._getframe  # noqa: SLF001 the one cheap way to callers
        read: Callable[[torch.Tensor], torch.Tensor | None] = descriptor.__get__

        def grad(tensor: torch.Tensor) -> torch.Tensor | None:
            """Return the gradient."""
            if reads.on_read is not None and not is_dynamo_compiling():
                reads.on_read(frame_of(1))
            if question and not is_dynamo_compiling() and id(tensor) in question:
                # Asked for here: what is between this and the look varies, and takes long.
                frame = frame_of(1)
                if frame.f_code not in silent:
                    reads._looks(tensor, frame)
            return read(tensor)

        self._code = grad.__code__
        watched = _WatchedProperty(
            grad, descriptor.__set__, descriptor.__delete__, descriptor.__doc__
        )
        watched.__objclass__ = descriptor.__objclass__  # torch._dynamo, before torch 2.6, asks
        watched.__doc__ = descriptor.__doc__  # the one of the class would be in front of it
        return watched

    def _hide(self) -> None:
        """
        Keep a compiler that has been loaded from compiling the property by itself.

        It would take the reading of C's own property in it for one of ours, which has no end.
        """
        if self._hidden or "torch._dynamo.eval_frame" not in sys.modules:
            return
        self._hidden = True
        sys.modules["torch._dynamo.eval_frame"].skip_code(self._code)
        self._looks = torch.compiler.disable(self._look)  # type: ignore[no-untyped-call]

    def _forget(self) -> None:
        """Put nothing in question where the run goes on unwatched: nothing tells of backwards."""
        if self.recorder.steps > self._until:
            self._question.clear()

    @shielded
    def _look(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Count a read of a gradient that is in question, if a line of the user's makes it."""
        if not self.recorder.patches.active or self.recorder.thread.is_elsewhere():
            return
        used, step = self._question.get(id(tensor)), self.recorder.steps
        if used is None or used.parameter() is not tensor:
            return
        if step > self._until:
            self._question.clear()  # a step went by unwatched: nothing has told of its backward
            return
        line = self._line(frame)
        if line is None or (line.step == step and line.was_full):
            return
        full = self._is_there(used, gradient_of(tensor), line)
        if full is not None:
            self._count(line, step, full)

    def _is_there(
        self, used: _UsedGradient, gradient: torch.Tensor | None, line: _Line
    ) -> bool | None:
        """Say whether there is a gradient, False where it was cleared, None where that is open."""
        turn = used.turn
        if gradient is None:
            known = line.step == self.recorder.steps
            return False if turn.waiting and (known or turn.is_cleared()) else None
        is_same = id(gradient) == used.gradient
        if not turn.waiting or (is_same and gradient._version == used.version):  # noqa: SLF001
            return True
        if gradient.layout != torch.strided or type(gradient) is not torch.Tensor:
            return None
        if line.checked != self.recorder.steps:
            if line.checks >= _CHECKED and not turn.window.is_surveyed:
                return None if is_same else True
            line.checks, line.checked = line.checks + 1, self.recorder.steps
        any_there = gradient.detach().any()
        if gradient.device.type == "cpu":
            return bool(any_there)
        if len(self._later) < _MOST_LATER:
            self._later.append((line, self.recorder.steps, any_there))
        return None

    def _count(self, line: _Line, step: int, full: bool) -> None:
        """Count a line once for each step, as full if any of its reads was."""
        if line.step != step:
            line.step, line.was_full = step, full
            line.full, line.empty = line.full + full, line.empty + (not full)
        elif full:
            line.was_full = True
            line.full, line.empty = line.full + 1, line.empty - 1
        self._alert = self._alert or not full

    def _line(self, frame: FrameType) -> _Line | None:
        """Return the line of the user's code that reads, or None where it does so by no intent."""
        inner: FrameType | None = frame
        measures = foreign(frame.f_code.co_filename)
        while inner is not None and not foreign(inner.f_code.co_filename):
            code = inner.f_code
            if code.co_name in SILENT_NAMES or SILENT.search(code.co_filename):
                if inner is frame:
                    self._silent.add(code)
                return None
            measures = measures or bool(_MEASURES.search(code.co_name))
            inner = inner.f_back
        if inner is None or not measures:
            return None
        key = (inner.f_code, inner.f_lineno)
        if key not in self._lines and len(self._lines) < _MOST_LINES:
            self._lines[key] = _line_of(inner)
        return self._lines.get(key)


def _line_of(frame: FrameType) -> _Line | None:
    """Describe a line of the user's code, unless it reads gradients in order to clear them."""
    code, row = frame.f_code, frame.f_lineno
    if code.co_name == "zero_grad":
        return None
    # Looked at here only: it keeps what the function holds alive until it returns.
    if code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
        return None
    text = linecache.getline(code.co_filename, row).strip()
    if text.startswith("assert ") or is_clearing(code.co_filename, row):
        return None
    if _matches(_ADDS, code.co_filename, row):
        return None
    around: FrameType | None = frame
    while around is not None and around.f_code.co_name in _COMPREHENSIONS:
        around = around.f_back
    called = place_of(around.f_back) if around is not None else ""
    return _Line(f"{code.co_filename}:{row}", text, called)


def is_clearing(file: str, row: int) -> bool:
    """Say whether a line, or one of the next inside the block that it opens, clears gradients."""
    return _matches(_CLEARS, file, row)


def _matches(pattern: re.Pattern[str], file: str, row: int) -> bool:
    """Say whether a pattern is in a line, or in one of the next inside the block that it opens."""
    text = linecache.getline(file, row).rstrip()
    if pattern.search(text):
        return True
    for below in range(row + 1, row + 4 if text.endswith(":") else row):
        inner = linecache.getline(file, below).rstrip()
        if inner and _indent(inner) <= _indent(text):
            return False
        if pattern.search(inner):
            return True
    return False


def _indent(text: str) -> int:
    """Return how far a line is indented."""
    return len(text) - len(text.lstrip())
