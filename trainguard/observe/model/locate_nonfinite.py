"""Find the module of a model that made the first value that is no number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainguard.observe.model.model_case import hookable


def origin(module: nn.Module, run: Callable[[], Any]) -> str:
    """
    Run a model and name the innermost module whose output is not finite though its inputs are.

    Returns "`encoder.norm` (LayerNorm)", or nothing where no single module did it.
    """
    parts = hookable(module)
    names = {id(part): name for name, part in parts.items()}
    found: list[str] = []

    def look(part: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        """Keep a module that turned numbers into none."""
        if not found and not _sound(output) and _sound([args, keywords]):
            name = names[id(part)] or type(module).__name__
            found.append(f"`{name}` ({type(part).__name__})")

    handles = [part.register_forward_hook(look, with_kwargs=True) for part in parts.values()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


def _sound(value: Any) -> bool:
    """Say whether all floating-point tensors in some arguments or outputs are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_sound(part) for part in value.values())
    return all(_sound(part) for part in value) if isinstance(value, tuple | list) else True
