"""Numbers that learn, and that a step puts into a variable which its code never reads."""

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.tools.user_line import PACKAGE, asks_for_variables, foreign, place_of

_MOST = 1000  # numbers with a graph that are looked at in a step
_TORCH = str(Path(torch.__file__).parent)
# What hands on the result of what it calls: loss functions, modules, operators.
_FILES = ("nn/", "overrides.py", "functional.py", "_tensor.py")
_HANDS_ON = (PACKAGE, *(f"{_TORCH}/{name}" for name in _FILES))
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL")
_RETURNS = 4  # functions of the user's through which a number is handed on


class TermsUnread(Question):
    """
    A step is made as it is, up to its first backward pass, and what becomes of numbers is read.

    measured: how many numbers with a graph go into variables that the code has no place to read;
    reference: how many numbers with a graph there are; smallest: the line of the first, enters: the
    variable.
    """

    name = "terms unread"
    asks = 1  # what the code has no place to read is not read in another step

    def __init__(self) -> None:
        self.stores = _Stores()

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step."""
        return "where numbers go"

    def applies(self, plain: Report) -> bool:
        """Say whether functions can be followed: compiled ones are no more those of the code."""
        return not plain["compiled"]

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Look at all numbers that are computed from now on."""
        self.stores.__enter__()  # type: ignore[no-untyped-call]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that reports before gradients are computed."""
        return _UnreadReader(call, way_out, self.stores)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Return how many are never read."""
        unread = edited["unread"]
        name, line = unread[0] if unread else ("", "")
        return Contrast(float(len(unread)), edited["seen"], smallest=line, enters=name)


class _Stores(TorchFunctionMode):
    """Looks into which variable a number with a graph goes, and whether anything reads that."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.unread = 0, dict[str, str]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and look at what it returns."""
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.grad_fn is not None and result.dim() == 0:
            self.seen += 1
            if self.seen <= _MOST:
                frame, name = find_store()
                if frame is not None and not is_read(frame.f_code, name):
                    self.unread.setdefault(place_of(frame), name)
        return result


class _UnreadReader(Witness):
    """Ends the child with what is never read, before gradients are computed."""

    def __init__(self, call: ModuleCall, way_out: Exit, stores: _Stores) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._stores = stores

    def before_backward(self, loss: torch.Tensor) -> None:
        """Report."""
        unread = [(name, line) for line, name in self._stores.unread.items()]
        self.way_out.report(unread=unread, seen=float(self._stores.seen))


def find_store() -> tuple[FrameType | None, str]:
    """Return the user's frame into whose variable goes what is computed now, and its name."""
    frame = _handed_to(sys._getframe(2))  # noqa: SLF001 the one way to look at callers
    for _ in range(_RETURNS):
        if frame is None:
            break
        name, is_returned = _whereto(frame.f_code, frame.f_lasti)
        if name:
            return frame, name
        frame = _handed_to(frame.f_back) if is_returned else None
    return None, ""


def _handed_to(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame to which a result is handed on as it is; None where it may not be."""
    while frame is not None and not foreign(file := frame.f_code.co_filename):
        if not file.startswith(_HANDS_ON):
            return None
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def _whereto(code: CodeType, at: int) -> tuple[str, bool]:
    """Return the variable into which the result of an instruction goes, or if it is returned."""
    following = next((one for one in dis.get_instructions(code) if one.offset > at), None)
    if following is None:
        return "", False
    if following.opname.startswith(_STORES):
        kept = following.argval
        return kept[0] if isinstance(kept, tuple) else kept, False
    return "", following.opname == "RETURN_VALUE"


@lru_cache(maxsize=1024)
def is_read(code: CodeType, name: str) -> bool:
    """Say whether a function, or one in it, or a cell after it, may read one of its variables."""
    if code.co_name.startswith("<") and not Path(code.co_filename).is_file():
        return True
    return name.startswith("_") or asks_for_variables(code) or _loads(code, name)


def _loads(code: CodeType, name: str) -> bool:
    """Say whether a variable is read in some code, or in the functions that are made in it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return name in list(_loaded_in(code)) or any(_loads(each, name) for each in inner)


def _loaded_in(code: CodeType) -> Iterator[Any]:
    """Yield the names that instructions read, also those that do two things at once."""
    for one in dis.get_instructions(code):
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if one.opname.startswith("LOAD_"):
            yield from names
        elif "LOAD" in one.opname:  # STORE_FAST_LOAD_FAST
            yield from names[1:]
