"""Numbers that learn, and that a step puts into a variable which its code never reads."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.tools.stores import find_store, is_read
from trainguard.observe.tools.user_line import place_of

_MOST = 1000  # numbers with a graph that are looked at in a step


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
                if frame is not None and not is_read(frame.f_code, name, frame.f_lasti):
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
