"""Watches for parameters that a model uses and does not register, as layers kept in a list."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.heap import living
from trainguard.observe.tools.user_line import user_frames, variables_of

_MOST_NODES = 20000
_FRAMES, _DEPTH, _WIDE = 6, 5, 256  # of the user's code, and of what is kept in its variables
_MOST_LOOKS = 4  # passes backward that are looked at in one step


class HiddenParameters(Watcher):
    """
    Makes parameters known that get gradients and belong to no module that was called by itself.

    And other tensors that are kept in one tree with what an optimizer holds. They are looked for in
    the graph of what is handed to backward, at steps 0, 1, 2, 4, 8, ...
    """

    makes = ("Parameter",)
    relies_on = ("MadeLines",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looked = (-1, 0)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the leaves of the graph, now and then."""
        step = self.recorder.steps
        last, looks = self._looked
        if step & (step - 1) or (step == last and looks >= _MOST_LOOKS) or loss.grad_fn is None:
            return
        self._looked = (step, looks + 1 if step == last else 1)
        self.recorder.names.refresh()
        unknown = [p for p in _leaves(loss) if not self.recorder.names.knows(p)]
        held = {
            id(p): p
            for window in self.recorder.windows
            if window.optimizer is not None and (optimizer := window.optimizer()) is not None
            for group in optimizer.param_groups
            for p in group["params"]
        }
        loose = {id(p): p for p in unknown if id(p) not in held}
        layers = {key: p for key, p in loose.items() if isinstance(p, nn.Parameter)}
        if layers:
            self._name(layers)
        if len(layers) < len(loose):
            for tensor, path in _find_beside(held, loose):
                self.recorder.names.add_hidden(tensor, path)

    def _name(self, loose: dict[int, nn.Parameter]) -> None:
        """
        Name parameters by the modules that hold them, and those that no module holds by their form.

        A module in evaluation mode is a helper; one that was not called is used by its methods.
        """
        names, called = self.recorder.names, self.recorder.called
        for module in living(nn.Module):
            for key, parameter in module.__dict__.get("_parameters", {}).items():
                known = loose.pop(id(parameter), None)
                if known is not None and module.training and id(module) in called:
                    place = self._place(module)
                    names.add_hidden(known, f"{place}.{key}")
                    self.recorder.watcher(MadeLines).add(place, module)
        for parameter in loose.values():
            names.add_hidden(parameter, names.parameter(parameter))

    def _place(self, module: nn.Module) -> str:
        """Name a module by the list or dict of another one that it is kept in, or by its class."""
        names = self.recorder.names
        for owner in [each for root in names.roots() for each in root.modules()]:
            for attribute, value in vars(owner).items():
                if attribute[:1] == "_" or not isinstance(value, list | tuple | dict):
                    continue
                entries = value.items() if isinstance(value, dict) else enumerate(value)
                for key, entry in entries:
                    parts = entry.named_modules() if isinstance(entry, nn.Module) else ()
                    inner = next((name for name, part in parts if part is module), None)
                    if inner is not None:
                        path = f"{names.module(owner)}.{attribute}[{key!r}]"
                        return f"{path}.{inner}" if inner else path
        return type(module).__name__


def _find_beside(
    held: dict[int, torch.Tensor], loose: dict[int, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, str]]:
    """
    Yield tensors that are no parameters of a module, and where they are kept, beside held ones.

    That is in one variable of the user's, some tree of which the optimizer has a part: an input
    that gets a gradient, as a picture that is attacked, has a variable of its own.
    """
    for frame in user_frames(_FRAMES):
        for name, value in variables_of(frame).items():
            tree = list(_walk(value, name, _DEPTH)) if isinstance(value, dict | list) else []
            if any(id(tensor) in held for tensor, _ in tree):
                for tensor, path in tree:
                    if id(tensor) in loose and not isinstance(tensor, nn.Parameter):
                        yield tensor, path


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[torch.Tensor, str]]:
    """Yield the tensors in dictionaries and lists, and the expressions that they are found by."""
    if isinstance(value, torch.Tensor):
        yield value, path
    elif depth and isinstance(value, dict | list | tuple) and len(value) <= _WIDE:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from _walk(entry, f"{path}[{key!r}]", depth - 1)


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a backward will give a gradient to."""
    for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
        leaf = getattr(node, "variable", None)
        # FSDP joins a layer's parameters in one of its own, and leaves them in the model as views.
        if isinstance(leaf, torch.Tensor) and not getattr(leaf, "_params", None):
            yield leaf
