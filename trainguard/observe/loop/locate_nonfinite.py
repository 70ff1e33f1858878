"""Find where the first value that is not finite came from: parameters, input, module or loss."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainguard.observe.tools.isolation import keep_streams
from trainguard.observe.tools.local_values import local_values

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

# An outermost module, its inputs, and the names of the last of them that were given by name.
Call = tuple[nn.Module, tuple[Any, ...], tuple[str, ...]]


def first_culprit(recorder: "Recorder", call: Call | None) -> str:
    """
    Return what was not finite first, in words: "output of `Net.fc1`".

    Parameters and inputs are looked at as they are. Then the forward pass is made again, without
    gradients and with its buffers and random streams restored, to find the first module that turns
    finite inputs into an output that is not.
    """
    for parameter in recorder.names.parameters():
        if not _finite(parameter):
            return f"parameter `{recorder.names.parameter(parameter)}`"
    if call is None:
        return ""
    module, inputs, keywords = call
    if not all(_finite(tensor) for tensor in tensors_in(inputs)):
        return f"input of `{recorder.names.module(module)}`"
    try:
        found, _ = recorder.faults.look_apart(
            recorder.names.module(module),
            module,
            lambda: _first_module(recorder, module, inputs, keywords),
        )
    except Exception:  # noqa: BLE001 whatever the user's forward does the second time
        return ""
    return "the loss, out of finite outputs" if found == "" else found or ""


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yield the tensors inside nested tuples, lists, dicts and dataclass-like outputs."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for entry in value.values():
            yield from tensors_in(entry, depth - 1)
    elif depth and isinstance(value, tuple | list):
        for entry in value:
            yield from tensors_in(entry, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        names = value.__dataclass_fields__  # it may have slots in place of a dict
        yield from tensors_in([getattr(value, name, None) for name in names], depth - 1)


def _finite(tensor: torch.Tensor) -> bool:
    """Say whether every element of a tensor is a finite number; integers always are."""
    dense = local_values(tensor)
    if dense is None or not dense.is_floating_point() or dense.layout != torch.strided:
        return True
    return bool(torch.isfinite(dense).all())


def _first_module(
    recorder: "Recorder", module: nn.Module, inputs: tuple[Any, ...], keywords: tuple[str, ...]
) -> str:
    """Run the module again and return the first one inside whose output is not finite."""
    found: list[str] = []

    def look(inner: nn.Module, _inputs: Any, output: Any) -> None:
        """Remember the first module whose output is not finite."""
        if not found and not all(_finite(tensor) for tensor in tensors_in(output)):
            found.append(f"output of `{recorder.names.module(inner)}`")

    positional = len(inputs) - len(keywords)
    named = dict(zip(keywords, inputs[positional:], strict=True))
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    hooks = [inner.register_forward_hook(look) for inner in module.modules()]
    recorder.patches.active = False
    try:
        with keep_streams(), torch.no_grad():
            module(*inputs[:positional], **named)
    finally:
        recorder.patches.active = True
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return found[0] if found else ""
