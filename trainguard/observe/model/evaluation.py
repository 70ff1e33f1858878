"""
The probe of a model in evaluation mode.

"repeat": how far the outputs of one input are apart in two calls with other random numbers,
    relative to the largest; `detail` is the function that drew them, where it is torch's.
"parameter", "buffer", "counter": how far a call moved something that is saved, relative to its
    largest value; a counter is a buffer of integers. A first call was made before, so that what is
    filled once is filled.
"mode": 1 for a module (`place`) that a call put into another mode (`detail`).
"input": how far a call edited an input in place.
"reseeded": 1 where a call seeds torch's random numbers.
"carried": how far the outputs of one input are apart before and after a call with another input.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import apart, largest
from trainguard.observe.model.frozen_copy import twin
from trainguard.observe.model.model_case import Inputs, ModelCase
from trainguard.observe.tools.user_line import caller

_FRAMES = 2


def observe(network: ModelCase) -> Iterator[Pass]:
    """Call the model in evaluation mode a few times, and see what is not as it was."""
    with torch.no_grad():
        module, inputs = network.build().eval(), network.draw()
        other = twin(network, module)
        modes = _modes(module)
        first = network.call(module, _copy(inputs))
        yield from _find_switches(network, module, modes)
        drawn = torch.default_generator.get_state()
        again = network.call(other, _copy(inputs), seed=1)
        if torch.equal(drawn, torch.default_generator.get_state()):
            yield network.make_event("reseeded", measured=1.0)
        place, gap = largest(again, first)
        function, source = _find_draw(network, other, inputs) if gap else ("", "")
        yield network.make_event(
            "repeat", place=place, measured=gap, detail=function, source=source
        )
        before = network.call(module, _copy(inputs))
        yield from _changes(network, module)
        place, carried = largest(network.call(module, _copy(inputs)), before)
        if gap == 0.0:
            yield network.make_event("carried", place=place, measured=carried)


def _find_draw(network: ModelCase, module: nn.Module, inputs: Inputs) -> tuple[str, str]:
    """Return the function that drew random numbers, dropout first, and where it was called."""
    with RandomDraws() as draws:
        network.call(module, _copy(inputs), seed=1)
    dropouts = [made for made in draws.made if "dropout" in made[0]]
    return next(iter([*dropouts, *draws.made]), ("", ""))


def _changes(network: ModelCase, module: nn.Module) -> Iterator[Pass]:
    """Call a module with another input, and yield what is no longer as it was."""
    saved = _copy_saved(module)
    others = network.draw(seed=1)
    given = _copy(others)
    network.call(module, given)
    after = _copy_saved(module)
    for name, (kind, value) in saved.items():
        found = after.get(name, (kind, None))[1]
        moved = apart(found, value)
        if moved:
            yield network.make_event(kind, place=name, measured=moved)
    for name, value in others.items():
        if isinstance(value, Tensor) and (edited := apart(given[name], value)):
            yield network.make_event("input", place=name, measured=edited)


def _find_switches(network: ModelCase, module: nn.Module, modes: dict[str, bool]) -> Iterator[Pass]:
    """Yield an event for each module whose mode is another one than it was."""
    for name, now in _modes(module).items():
        if modes.get(name, now) is not now:
            yield network.make_event(
                "mode", place=name, measured=1.0, detail="training" if now else "evaluation"
            )


def _copy_saved(module: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """Return (kind, copy) of each parameter and buffer that a checkpoint holds."""
    kept = set(module.state_dict())
    renormed = {
        id(part.weight)
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
    }  # an embedding that limits its norm does so whenever it is read
    parameters = {
        name: ("parameter", parameter.detach().clone())
        for name, parameter in module.named_parameters()
        if id(parameter) not in renormed
    }
    buffers = {
        n: ("buffer" if b.is_floating_point() or b.is_complex() else "counter", b.detach().clone())
        for n, b in module.named_buffers()
        if n in kept
    }
    return {**parameters, **buffers}


def _modes(module: nn.Module) -> dict[str, bool]:
    """Return for each module whether it is in training mode."""
    return {name or type(part).__name__: part.training for name, part in module.named_modules()}


def _copy(inputs: Inputs) -> Inputs:
    """Return inputs whose tensors are copies, in case a call edits them."""
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}


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
