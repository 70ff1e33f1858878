"""Steps of functional training: gradients by `torch.func` of what a module is called with."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._pytree import tree_leaves

from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import is_abstract

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_functorch = torch._C._functorch  # noqa: SLF001 no other way to ask


class FunctionalSteps:
    """
    Tells of gradients by `torch.func` as of those that `torch.autograd.grad` returns.

    Only of those with respect to what a module that is called meanwhile has as its parameters, as
    `functional_call` gives them to it, and only where there is no optimizer. Each of them has a
    stand-in, which is one tensor for the whole run and has the memory of whatever is in its place:
    a dict that is replaced moves it as one that is written to. What is differentiated with other
    places, or inside of other gradients, is no step that is known.
    """

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self.is_computing = False
        self._places: dict[int, int] = {}  # while gradients are computed: of what, by id
        self._names: dict[int, str] = {}
        self.is_behind = False  # whether stand-ins are what was before a step, perhaps
        self._given: dict[str, weakref.ref[torch.Tensor]] = {}  # to modules, as their parameters
        self._known: dict[int, str] = {}  # of what there are stand-ins
        self._stand_ins: list[nn.Parameter] = []

    def install(self) -> None:
        """Begin to listen; what is public stays the object that it is."""
        name = "grad_and_value_impl"
        self.recorder.patches.replace(eager_transforms, name, self._computes)

    def meet(self, module: nn.Module, name: str) -> None:
        """See that a module was called: what is differentiated may be its parameters."""
        if not self.recorder.hand.is_alone():
            return
        if not self._places and isinstance(next(module.parameters(), None), nn.Parameter):
            return
        called: Iterable[tuple[str, Any]] = module.named_parameters()  # not of `functional_call`
        for path, parameter in called:
            place = self._places.get(id(parameter))
            if place is not None:
                self._names.setdefault(place, f"{name}.{path}")
            elif not isinstance(parameter, nn.Parameter) and parameter.is_leaf:
                self._given[f"{name}.{path}"] = weakref.ref(parameter)

    def follow(self, leaves: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return stand-ins of what a module was given as its parameters, or nothing."""
        if not (self._given or self._known) or not self.recorder.hand.is_alone():
            return ()
        if is_transforming():
            return ()
        given = {id(t): name for name, ref in self._given.items() if (t := ref()) is not None}
        names = {place: given[id(t)] for place, t in enumerate(leaves) if id(t) in given}
        if not self.recorder.patches.watching:
            names = self._known
        able = len(names) == len(leaves) and self._stand(leaves, names)
        return self._stand_ins if able else ()

    def stay(self, kept: Sequence[torch.Tensor]) -> None:
        """Take down that a step may follow, which stand-ins are not to see before they move on."""
        self.is_behind = any(p is s for p in kept[:1] for s in self._stand_ins)

    def _computes(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return what computes gradients and tells of them."""
        recorder, compiling = self.recorder, torch.compiler.is_compiling

        @wraps(compute)
        def wrapper(
            func: Callable[..., Any], argnums: Any, has_aux: bool, args: Any, kwargs: Any
        ) -> Any:
            """Compute gradients; those with respect to parameters may be stepped along by hand."""
            if compiling() or not self._is_able():
                return compute(func, argnums, has_aux, args, kwargs)

            def told(*inner: Any, **more: Any) -> Any:
                """Call the function that is differentiated."""
                leaves = tree_leaves(_chosen(inner, argnums))
                self._places, self._names = {id(t): i for i, t in enumerate(leaves)}, {}
                try:
                    return func(*inner, **more)
                finally:
                    self._places = {}

            self.is_computing = True
            try:
                result = compute(told, argnums, has_aux, args, kwargs)
            finally:
                self.is_computing = False
            # Where no calls are told of, what was met before is known by its shapes.
            if self._names or not recorder.patches.watching:
                with temporarily_clear_interpreter_stack():
                    self._tell(_chosen(args, argnums), result[0], result[1], has_aux)
            return result

        return wrapper

    def _is_able(self) -> bool:
        """Say whether gradients are those of a step, and of this recording."""
        recorder, patches = self.recorder, self.recorder.patches
        if not patches.active or patches.blind or recorder.thread.is_elsewhere() or is_abstract():
            return False
        if self.is_computing or recorder.backward or recorder.calling:
            return False
        stack = _functorch.get_interpreter_stack() or ()
        vmap = _functorch.TransformType.Vmap
        return recorder.hand.is_alone() and all(i.key() == vmap for i in stack)

    def _tell(self, params: Any, gradients: Any, value: Any, has_aux: bool) -> None:
        """Tell of gradients, once what was done along the ones before them is seen."""
        recorder = self.recorder
        if recorder.hand.may_step(tree_leaves(params)):
            return
        names, self._names = self._names or self._known, {}
        found = recorder.faults.look(self._pairs, params, gradients, names)
        loss = recorder.faults.look(_mean, value[0] if has_aux else value)
        if not found or loss is None:
            return
        if not recorder.patches.watching:
            recorder.hand.count()
        if not recorder.patches.watching:
            return
        recorder.backward_begins(loss)
        recorder.backward_ends(loss, *found)

    def _pairs(
        self, params: Any, gradients: Any, names: dict[int, str]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the stand-ins, with the gradients of what they stand for now."""
        leaves, slopes = tree_leaves(params), tree_leaves(gradients)
        if len(leaves) <= max(names, default=0) or not self._stand(leaves, names):
            return []
        pairs = zip(names, self._stand_ins, strict=True)
        found: list[tuple[torch.Tensor, torch.Tensor]]
        found = [(s, _slope(slopes[place], s)) for place, s in pairs]
        return found if all(s.shape == slope.shape for s, slope in found) else []

    def _stand(self, leaves: Sequence[torch.Tensor], names: dict[int, str]) -> bool:
        """Let stand-ins have the memory of what is in their places; say whether there are any."""
        values = [_bare(leaves[place]).detach() for place in names]
        if not self._known and names:
            self._known = names
            self._stand_ins = [nn.Parameter(value) for value in values]
            for stand_in, name in zip(self._stand_ins, names.values(), strict=True):
                self.recorder.names.add_hidden(stand_in, name)
        if names != self._known or [_kind(v) for v in values] != [*map(_kind, self._stand_ins)]:
            return False
        for stand_in, value in zip(self._stand_ins, values, strict=True):
            stand_in.data = value
        self.is_behind = False
        return bool(values)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what tensors have in common that stand in one place."""
    return tensor.shape, tensor.dtype, tensor.device


def _chosen(args: Sequence[Any], argnums: Any) -> Any:
    """Return the arguments with respect to which gradients are computed."""
    return args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of those that transformations have put around it."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _mean(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss; of those of samples, which `vmap` computes, their mean."""
    return _bare(loss).detach().mean()


def _slope(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a gradient; of those of samples, their mean."""
    bare = _bare(gradient).detach()
    return bare if bare.shape == parameter.shape else bare.mean(0)
