"""Attributes of torch and of loggers, replaced for as long as a recording lasts."""

import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainguard.core.errors import passes_on
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.tools.redirection import Redirection

T = TypeVar("T")
_MISSING = object()
_COMPILED = "_torchdynamo_inline"  # by which torch knows what to compile in the place of a function
_EVERY: "weakref.WeakSet[Patches]" = weakref.WeakSet()
_is_tracing: Callable[[], bool] = torch._C._is_tracing  # noqa: SLF001 the public one asks more
_is_told: Callable[[], bool] = torch._C._is_torch_function_enabled  # noqa: SLF001 as above
_TELLING: Any = getattr(torch._C, "_EnableTorchFunction", nullcontext)  # noqa: SLF001 as above
_build_graphs: Callable[[bool], None] = torch._C._set_grad_enabled  # noqa: SLF001 as above
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # noqa: SLF001 there is no other


class Patches:
    """
    What was replaced, so that it can be put back.

    active: whether to record; a forked child of the process that began it does not.
    watching: whether this step is one of those that are recorded; in a long run not all are.
    blind: whether nothing may be looked at any more, so that steps are only counted.

    Where somebody replaced an attribute again on top of ours, theirs is left in place: our
    replacement underneath looks at `active` and then does nothing but call the original. Where
    that was another recording, it is told what to put back in the end instead of ours.
    """

    def __init__(self) -> None:
        self.active = False
        self.watching = True
        self.blind = False
        _EVERY.add(self)
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._removals: list[Callable[[], object]] = []

    @property
    def live(self) -> bool:
        """Whether to record what happens now."""
        return self.active and self.watching and not self.blind

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of an attribute, where the owner has it."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        own = vars(owner).get(name, _MISSING)
        replacement = passes_on(make(original))
        if type(original) is FunctionType and type(replacement) is FunctionType:
            # A compiler goes through what was there: none of ours could be in its graph.
            vars(replacement)[_COMPILED] = vars(original).get(_COMPILED, original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, own, replacement))

    def redirect(self, function: Any, make: Callable[[Any], Any]) -> None:
        """Let a function, which stays the object that it is, call `make(a copy of it)`."""
        self.on_undo(Redirection(function, make).undo)

    def on_undo(self, remove: Callable[[], object]) -> None:
        """Remember something else to be done when all is put back, such as removing a hook."""
        self._removals.append(remove)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        self.active = False
        while self._removals:
            self._removals.pop()()
        while self._replaced:
            owner, name, own, replacement = self._replaced.pop()
            if vars(owner).get(name, _MISSING) is not replacement:
                _hand_over(owner, name, replacement, own)
                continue
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def tell_before(see: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes of a function one that tells what it is given, and then calls it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that tells."""

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Tell, and do what the original does."""
            see(*args, **kwargs)
            return original(*args, **kwargs)

        return wrapper

    return make


def tell_after(see: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes of a function one that tells what it has returned, and was given."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that tells."""

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Do what the original does, and tell of it."""
            result = original(*args, **kwargs)
            see(result, *args, **kwargs)
            return result

        return wrapper

    return make


def _hand_over(owner: Any, name: str, replacement: Any, own: Any) -> None:
    """Let the recording that put something on top of a replacement put back what was below it."""
    for patches in list(_EVERY):
        patches._replaced = [  # noqa: SLF001 one of our own
            (o, n, own if o is owner and n == name and below is replacement else below, ours)
            for o, n, below, ours in patches._replaced  # noqa: SLF001
        ]


def _rest_in_child() -> None:
    """Stop recording in a forked child, such as a worker of a DataLoader."""
    for patches in list(_EVERY):
        patches.active = False


if hasattr(os, "register_at_fork"):  # once for all recordings: it cannot be taken back
    os.register_at_fork(after_in_child=_rest_in_child)


def is_abstract() -> bool:
    """Say whether what runs now is traced, or runs on tensors without values."""
    return _is_tracing() or (_modes() > 0 and detect_fake_mode() is not None)


def unseen(work: Callable[..., T], *args: Any) -> T:
    """Return what we do with tensors; no class of tensors or mode of the user's is told of it."""
    if _modes():
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001 as documented
            return work(*args)
    if not _is_told():
        return work(*args)
    with torch._C.DisableTorchFunction():  # noqa: SLF001 as documented
        return work(*args)


def graphless(work: Callable[..., T], *args: Any) -> T:
    """Return what we do with tensors, of which no graph is kept; `torch.no_grad` takes longer."""
    was = torch.is_grad_enabled()
    _build_graphs(False)
    try:
        return work(*args)
    finally:
        _build_graphs(was)


def seen(work: Callable[[], T]) -> T:
    """Return what the user's own code does, with what it defined of tensors, inside of `unseen`."""
    with _TELLING():
        return work()


class WriteRefusedError(RuntimeError):
    """Raised by an operator that would have written to a tensor that is not to be touched."""


class ReadOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Refuses operators that write to the memory of some tensors, also through their `data`.

    It sees what passes through torch's dispatcher: NumPy and kernels of other makers do not.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = {_place(tensor) for tensor in tensors}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, unless it writes to what is kept."""
        named = kwargs or {}
        if func._schema.is_mutable:  # noqa: SLF001 there is no other way to learn of it
            for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                given = args[place] if place < len(args) else named.get(argument.name)
                if any(_place(tensor) in self._kept for tensor in tensors_in(given)):
                    raise WriteRefusedError(f"{func} would write to what is only to be read")
        return func(*args, **named)


def _place(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor is; the same for all its views."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 the data of empty ones is at 0
