"""Which calls of the team's code draw random numbers, and where they stand."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.tools.user_line import caller

_FRAMES = 2


class RandomDraws(TorchFunctionMode):
    """
    Notes every call of torch in a block after which its random stream is another.

    made: (function, `file:line` of the user's code) pairs: ("dropout", "model.py:41").
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make one call, and note it where it drew."""
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.default_generator.get_state()):
            self.made.append((getattr(func, "__name__", str(func)), caller(_FRAMES)))
        return result
