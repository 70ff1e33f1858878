"""See how many units of each ReLU are active while a model runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase, hookable
from trainguard.observe.tools.user_line import caller

_RELUS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu_}


class ReluActivity(TorchFunctionMode):
    """
    Counts, inside the block, the elements that each ReLU lets through.

    "activity": one ReLU, `count` of whose `of` outputs are above zero; `place` is the module that
        called it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.running: list[str] = []
        self.counts: dict[tuple[str, str], tuple[int, int]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> "ReluActivity":
        """Follow which module is running, and begin to count."""
        for name, part in hookable(self.module).items():
            self._handles += [
                part.register_forward_pre_hook(
                    lambda _part, _args, name=name: self.running.append(name)
                ),
                part.register_forward_hook(lambda *_given: self._leave(), always_call=True),
            ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """Stop counting."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch, and count where it is a ReLU."""
        returned = function(*args, **dict(keywords or {}))
        if function not in _RELUS:
            return returned
        key = (self.running[-1] if self.running else "", caller())
        active, every = self.counts.get(key, (0, 0))
        self.counts[key] = (active + int((returned > 0).sum()), every + returned.numel())
        return returned

    def events(self, network: ModelCase) -> Iterator[Pass]:
        """Yield what was counted, in the order of the first calls."""
        for (place, source), (active, every) in self.counts.items():
            yield network.make_event("activity", place=place, count=active, of=every, source=source)

    def _leave(self) -> None:
        """Leave the module that ran last."""
        if self.running:
            self.running.pop()
