"""Names of modules and parameters, as people call them: `Net.encoder.0.weight`."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trainguard.observe.tools.user_line import foreign

_WRAPPED = ("_orig_mod", "module")  # of torch.compile, and of the parallel wrappers
_WRAPPERS = ("torch", "accelerate")  # the packages whose wrappers those are
_TABLES = (nn.ParameterList, nn.ParameterDict)  # of the module that has them, and never called


class ModuleNames:
    """
    The names of all modules and parameters below the outermost modules that were called.

    A module that is called inside another one is not outermost. One that was called before training
    and is part of a larger one (a backbone tried out before its model) is named as that part; later
    it keeps its first name, which events bear already.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[nn.Module]] = []
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str, str]] = {}
        self._own: dict[str, str] = {}  # modules whose class is none of torch's, with their lines
        self.hidden: set[int] = set()  # ids of parameters that no outermost module registers
        self._taken: dict[str, int] = {}
        self.gone = 0  # outermost modules that were deleted

    def roots(self) -> Iterator[nn.Module]:
        """Yield the outermost modules that are still alive."""
        return (root for ref in self._roots if (root := ref()) is not None)

    def add(self, module: nn.Module, *, renames: bool = False) -> str:
        """Learn the names below an outermost module, anew if so asked, and return its own."""
        known = self._find_name(module)
        if known:
            return known
        inner = unwrap(module)
        name = self._find_name(inner)
        if not name:
            if renames:
                self._forget_parts(inner)
            name = self.unique(type(inner).__name__)
            self._roots.append(weakref.ref(inner, self._note_gone))
            self.learn(inner, name)
        self._modules[id(module)] = (weakref.ref(module), name)
        return name

    def _note_gone(self, _: object) -> None:
        """Count an outermost module that was deleted."""
        self.gone += 1

    def learn(self, root: nn.Module, name: str) -> None:
        """Learn the names below a module; those known already are kept."""
        for path, module in root.named_modules():
            own = f"{name}.{path}" if path else name
            if not type(module).__module__.startswith("torch."):
                self._own[own] = _find_line(type(module))
            holder = own.rpartition(".")[0] if isinstance(module, _TABLES) and path else own
            if not self._find_name(module):
                self._modules[id(module)] = (weakref.ref(module), own)
            for key, parameter in module.named_parameters(recurse=False):
                if not self.knows(parameter):
                    entry = (weakref.ref(parameter), f"{own}.{key}", holder)
                    self._parameters[id(parameter)] = entry

    def _forget_parts(self, whole: nn.Module) -> None:
        """Forget the names below outermost modules that turn out to be parts of a larger one."""
        parts = {id(part) for part in whole.modules()}
        inside = [root for root in self.roots() if id(root) in parts]
        if not inside:
            return
        self._roots = [ref for ref in self._roots if id(ref()) not in parts]
        for root in inside:
            for module in root.modules():
                self._modules.pop(id(module), None)
            for parameter in root.parameters():
                self._parameters.pop(id(parameter), None)

    def add_hidden(self, parameter: torch.Tensor, name: str) -> None:
        """Learn the name of a parameter that is in use though no outermost module registers it."""
        self._parameters[id(parameter)] = (weakref.ref(parameter), name, name.rpartition(".")[0])
        self.hidden.add(id(parameter))

    def is_own(self, parameter: torch.Tensor) -> bool:
        """Say whether the class of the module that holds a parameter is the user's."""
        return self.holder(parameter) in self._own

    def source(self, parameter: torch.Tensor) -> str:
        """Return where the user wrote the innermost module that a parameter is in, or nothing."""
        path = self.holder(parameter)
        while path and not self._own.get(path):
            path = path.rpartition(".")[0]
        return self._own.get(path, "")

    def refresh(self) -> None:
        """Learn what was added below the outermost modules since they were first called."""
        for root in self.roots():
            self.learn(root, self.module(root))

    def unique(self, name: str) -> str:
        """Return the name, with a number behind it from the second time on."""
        self._taken[name] = count = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def module(self, module: nn.Module) -> str:
        """Return the name of a module, or of its class where it was never met."""
        return self._find_name(module) or type(module).__name__

    def parameter(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter, or its shape where no module is known to hold it."""
        if not self.knows(parameter):
            return f"parameter of shape {tuple(parameter.shape)}"
        return self._parameters[id(parameter)][1]

    def holder(self, parameter: torch.Tensor) -> str:
        """Return the name of the module that holds a parameter, or nothing."""
        return self._parameters[id(parameter)][2] if self.knows(parameter) else ""

    def knows(self, parameter: torch.Tensor) -> bool:
        """Say whether a parameter belongs to a module that was called."""
        known = self._parameters.get(id(parameter))
        return known is not None and known[0]() is parameter  # ids are used again

    @property
    def met(self) -> int:
        """How many parameters were ever met."""
        return len(self._parameters)

    def has_parameters(self) -> bool:
        """Say whether some known parameter is still alive."""
        return any(ref() is not None for ref, _, _ in self._parameters.values())

    def parameters(self) -> list[torch.Tensor]:
        """Return the known parameters that are still alive, in the order of their models."""
        return [p for ref, _, _ in self._parameters.values() if (p := ref()) is not None]

    def _find_name(self, module: nn.Module) -> str:
        """Return the name of a module that was met, or nothing."""
        known = self._modules.get(id(module))
        return known[1] if known is not None and known[0]() is module else ""


def _find_line(kind: type) -> str:
    """Return `file:line` of what a class of the user's computes, or nothing."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None or not foreign(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's and the parallel wrappers."""
    inner: Any = module
    for _ in range(4):
        held = inner.__dict__.get("_modules", {})
        wrapper = len(held) == 1 and next(iter(held)) in _WRAPPED
        if not wrapper or type(inner).__module__.partition(".")[0] not in _WRAPPERS:
            break
        inner = next(iter(held.values()))
    return inner if isinstance(inner, nn.Module) else module


def find_repeats(root: nn.Module, name: str = "") -> Iterator[tuple[str, int, nn.Module]]:
    """Yield the names of a layer that a list holds several times, how often it does, and it."""
    for path, module in root.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        places: dict[nn.Module, list[str]] = {}
        for key, layer in module._modules.items():  # noqa: SLF001 the public iterators skip doubles
            if layer is not None and next(layer.parameters(), None) is not None:
                places.setdefault(layer, []).append(".".join(filter(None, (name, path, key))))
        for layer, names in places.items():
            if len(names) > 1:
                more = " ..." if len(names) > 2 else ""
                yield f"{names[0]} is {names[1]}{more}", len(names), layer
