"""
A FrozenCopy is a built model that is never called itself: every call is made on a fresh copy.

So nothing that a call leaves behind, such as a cache, a hidden state or a running mean, gets into
the next one. It is in evaluation mode. Where rounding has to be told from what one input does to
another it can be in float64: there it is far below.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.observe.model.model_case import Inputs, ModelCase
from trainguard.observe.model.outputs import Outputs
from trainguard.subjects.domain import BATCH

_NUDGE = 0.1


@dataclass
class FrozenCopy:
    """
    One built model, of which copies are called.

    double: whether the copies and their inputs are in float64.
    fixed: inputs that are not drawn but made for a network of given sizes.
    """

    network: ModelCase
    module: nn.Module
    double: bool = False
    fixed: dict[str, Callable[[ModelCase], Tensor]] = field(default_factory=dict)
    _first: Outputs | None = None
    _edits: bool = True  # whether a call may edit parameters, until one has been seen not to

    @classmethod
    def of(cls, network: ModelCase) -> "FrozenCopy":
        """
        Build a model and nudge the parameters that are one and the same number throughout.

        Gates that begin at zero would hide all that lies behind them until the first step.
        """
        made = cls(network, network.build().eval())
        _nudge(made.module)
        return made

    def precise(self) -> "FrozenCopy":
        """Return the same in float64, or this one where the model cannot be."""
        if self.double or self.network.device == "mps":
            return self
        made = twin(self.network, self.module, self._redo_changes).double()
        other = replace(self, module=made, double=True, _first=None, _edits=True)
        try:
            other.first()
        except SubjectError:  # a constant of its own in float32
            return self
        return other

    def copy(self) -> nn.Module:
        """Return a fresh copy; the parameters are shared unless a call has edited its own."""
        known = dict[int, object]() if self._edits else {id(p): p for p in self.module.parameters()}
        return twin(self.network, self.module, self._redo_changes, known)

    def _redo_changes(self, built: nn.Module) -> nn.Module:
        """Do to a model that was built alike what was done to this one."""
        _nudge(built)
        return built.double() if self.double else built

    def draw(self, seed: int = 0, **sizes: int) -> Inputs:
        """Draw one batch of inputs, of other sizes where they are given."""
        network = self.network.with_sizes(**sizes) if sizes else self.network
        drawn = {name: _whole_first(network, name, v) for name, v in network.draw(seed).items()}
        drawn.update({name: made(network) for name, made in self.fixed.items()})
        return {n: _as_double(v) for n, v in drawn.items()} if self.double else drawn

    def fix(self, name: str, made: Callable[[ModelCase], Tensor]) -> None:
        """Make an input from now on, and draw it no more."""
        self.fixed[name] = made
        self._first = None

    def first(self) -> Outputs:
        """Return the outputs for the first batch that is drawn."""
        if self._first is None:
            made = self.copy()
            self._first = self._call(made, self.draw())
            if self._edits:
                pairs = zip(made.parameters(), self.module.parameters(), strict=True)
                self._edits = not all(torch.equal(copied, own) for copied, own in pairs)
        return self._first

    def call(self, inputs: Inputs, seed: int = 0) -> Outputs:
        """Call a fresh copy without gradients."""
        return self._call(self.copy(), inputs, seed)

    def _call(self, module: nn.Module, inputs: Inputs, seed: int = 0) -> Outputs:
        """Call a module without gradients."""
        with torch.no_grad(), plain_kernels():
            return self.network.call(module, inputs, seed=seed)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run a block without the kernels of attention that serve evaluation alone."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def raise_unjudged(network: ModelCase, sentence: str) -> None:
    """Say that nothing can be judged, where it is the largest case that cannot be."""
    if network.case == 0:
        raise Unjudged(sentence)


def _whole_first(network: ModelCase, name: str, value: object) -> object:
    """Return an input whose first sample is not padded, where it is a mask: no length shrinks."""
    domain = network.model.tensors.get(name)
    if domain is None or domain.kind != "mask" or BATCH not in domain.names:
        return value
    assert isinstance(value, Tensor), "a mask is a tensor"
    keep = torch.as_tensor(domain.values[0]).to(value)
    value.select((domain.shape or ()).index(BATCH), 0).copy_(keep)
    return value


def twin(
    network: ModelCase,
    module: nn.Module,
    alike: Callable[[nn.Module], nn.Module] = lambda built: built,
    shared: Mapping[int, object] | None = None,
) -> nn.Module:
    """
    Return a copy of a module in evaluation mode; where it refuses, one that is built alike.

    shared: what is not copied, by its id.
    """
    try:
        return copy.deepcopy(module, dict(shared or {}))
    except Exception:  # noqa: BLE001 weight norm of the old kind, for one
        return alike(network.build().eval())


def _as_double(value: object) -> object:
    """Return an input in float64 where it is a tensor of floats."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _nudge(module: nn.Module) -> None:
    """Add small positive numbers to each trained parameter whose elements are all alike."""
    generator = Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            alike = parameter.requires_grad and parameter.numel() and parameter.is_floating_point()
            if alike and bool((parameter == parameter.flatten()[0]).all()):
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.add_(_NUDGE * drawn.to(parameter))


@dataclass
class InputGradients:
    """
    The places at which inputs come into a model: themselves, or their embeddings.

    inputs: what the model is to be called with instead.
    leaves: (input, tensor) pairs; a tensor's first axes are those of its input.
    """

    inputs: Inputs
    leaves: list[tuple[str, Tensor]] = field(default_factory=list)


@contextmanager
def tapping(module: nn.Module, inputs: Inputs, names: Iterable[str]) -> Iterator[InputGradients]:
    """Tap the named inputs of what is called in the block."""
    taps, whole = InputGradients(dict(inputs)), {}
    for name in names:
        value = inputs[name]
        if isinstance(value, Tensor) and value.is_floating_point():
            leaf = value.clone().requires_grad_()
            taps.leaves.append((name, leaf))
            taps.inputs[name] = leaf.clone()  # a leaf must not be edited in place, a copy may
        elif isinstance(value, Tensor):
            whole[name] = value
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    handles = [part.register_forward_hook(_tap(taps, whole)) for part in embeddings]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _tap(taps: InputGradients, whole: Inputs) -> Any:
    """Return a hook that keeps what an embedding makes of one of the inputs."""

    def hook(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Keep the output, and see to it that it is part of the graph."""
        name = next((n for n, value in whole.items() if args and _equal(args[0], value)), None)
        if name is None or not isinstance(output, Tensor):
            return None
        kept = output if output.requires_grad else output.detach().requires_grad_()
        taps.leaves.append((name, kept))
        return kept

    return hook


def _equal(given: Any, value: Tensor) -> bool:
    """Say whether a module was given an input as it is."""
    same = isinstance(given, Tensor) and given.shape == value.shape and given.dtype == value.dtype
    return same and torch.equal(given, value)
