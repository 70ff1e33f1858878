"""The probe `backward`: what flows back to each parameter, at first and after a few small steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.identical_parts import IdenticalParts, step
from trainguard.observe.model.initial import check_globs
from trainguard.observe.model.model_case import ModelCase, backward, hookable
from trainguard.observe.tools.module_names import find_repeats, unwrap
from trainguard.observe.tools.user_line import caller

_PASSES = 4
_SEEDS = 3
_RELUS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu_}


@dataclass
class ParameterGradients:
    """
    What one parameter received over all passes.

    times: passes that gave it a gradient other than zero; passes: all. reached: whether autograd
    ever handed it a gradient, be it zero. called: whether its module was. largest: the largest
    root mean square. unsound: gradients of first passes that were not finite.
    """

    times: int = 0
    passes: int = 0
    reached: bool = False
    called: bool = False
    largest: float = 0.0
    unsound: int = 0


@dataclass
class GradientTotals:
    """The accounts of all parameters that are meant to be trained."""

    network: ModelCase
    accounts: dict[str, ParameterGradients] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether some parameter has not received any gradient yet."""
        return any(not account.times for account in self.accounts.values())

    def enter(self, module: nn.Module, called: set[str], *, judged: bool) -> None:
        """Enter the gradients of one backward pass; `judged` says whether they must be finite."""
        for name, parameter in trained_parameters(self.network, module).items():
            account = self.accounts.setdefault(name, ParameterGradients())
            account.passes += 1
            account.called |= name.rpartition(".")[0] in called
            gradient = parameter.grad
            if gradient is None:
                continue
            account.reached = True
            size = _size(gradient)
            if size == size and size != torch.inf:
                account.times += size > 0
                account.largest = max(account.largest, size)
            else:
                account.times += 1
                account.unsound += judged


def observe(network: ModelCase) -> Iterator[Pass]:
    """
    Measure what flows back: one pass, and where that leaves a question more on fresh batches.

    Behind a gate that starts at zero nothing flows at first, and all is well as soon as the gate
    has moved: small steps lie between the passes. Where parameters are left without a gradient,
    evaluation mode and two more seeds are tried: what only some of them reach is chosen by chance
    or by the data.

    "gradient": of one parameter, `count` of `of` passes in which it received one; `measured` is
        the largest root mean square, `reference` the number of its dimensions, and `detail` one
        of "uncalled", "unreached", "zero", or "not finite".
    "repeated": a layer that stands at `count` places of a list.
    "twins", "components": see `IdenticalParts`. "activity": see `ReluActivity`.
    """
    ledger = GradientTotals(network)
    module = network.build()
    _check(network, module)
    twins = IdenticalParts(network, module) if network.case == 0 else None
    activity = ReluActivity(module)
    with activity:
        _pass(ledger, module, 0)
    for index in range(1, _PASSES):
        if ledger.missing or (twins is not None and twins.looks):
            step(trained_parameters(network, module).values())
            _pass(ledger, module, index)
    if twins is not None:
        yield from twins.find_identical(module)
        for label, places, _ in find_repeats(unwrap(module)):
            yield network.make_event("repeated", place=label, count=places)
    _search(ledger, module)
    yield from activity.events(network)
    yield from _make_events(ledger, module)


def trained_parameters(network: ModelCase, module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are meant to be trained and to get a gradient."""
    apart = (*network.model.frozen, *network.model.unused)
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
        and parameter.numel()  # an empty one only remembers the device
        and not any(fnmatchcase(name, glob) for glob in apart)
    }


def _check(network: ModelCase, module: nn.Module) -> None:
    """Raise for globs that fit no parameter, and where no parameter is to be trained."""
    names = [name for name, _ in module.named_parameters()]
    check_globs("frozen", network.model.frozen, names)
    check_globs("unused", network.model.unused, names)
    if not trained_parameters(network, module):
        raise Unjudged("no parameter of the model is trained")


def _pass(ledger: GradientTotals, module: nn.Module, index: int, seed: int = 0) -> None:
    """Run forward and backward on a fresh batch, and enter the gradients."""
    network = ledger.network
    module.zero_grad(set_to_none=True)
    parts = hookable(module)
    called = {name for name, _ in module.named_modules()} - set(parts)
    names = {id(part): name for name, part in parts.items()}
    handles = [
        part.register_forward_pre_hook(lambda part, _args: called.add(names[id(part)]))
        for part in parts.values()
    ]
    try:
        inputs = network.draw(10 * seed + index)
        objective = network.objective(network.call(module, inputs, seed=index), inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not objective.requires_grad:
        raise SubjectError(
            "its outputs are detached from its parameters, so nothing can be learned from them",
            "look for .item(), .detach(), .data, torch.no_grad() or a tensor made anew",
        )
    backward(objective)
    # Later passes come after steps that nobody asked for; a lost loss is told as such.
    ledger.enter(module, called, judged=index == 0 and bool(objective.isfinite()))


def _search(ledger: GradientTotals, module: nn.Module) -> None:
    """Look in evaluation mode and from other seeds, for as long as some gradient is missing."""
    if ledger.missing:
        step(trained_parameters(ledger.network, module).values())
        with suppress(SubjectError):  # the loss may not take what evaluation returns
            _pass(ledger, module.eval(), _PASSES)
    for seed in range(1, _SEEDS if ledger.network.is_seeded else 1):
        if not ledger.missing:
            return
        module = ledger.network.build(seed)
        for index in range(_PASSES):
            if index:
                step(trained_parameters(ledger.network, module).values())
            _pass(ledger, module, index, seed)


def _make_events(ledger: GradientTotals, module: nn.Module) -> Iterator[Pass]:
    """Yield what each parameter received, in the order of the model."""
    parameters = dict(module.named_parameters())
    for name, account in ledger.accounts.items():
        yield ledger.network.make_event(
            "gradient",
            place=name,
            count=account.times,
            of=account.passes,
            measured=account.largest if account.times else nan,
            reference=float(parameters[name].ndim),
            detail=_word(account),
        )


def _word(account: ParameterGradients) -> str:
    """Say in a word why a parameter has no gradient to learn from; nothing where it has one."""
    if account.unsound:
        return "not finite"
    if account.times:
        return ""
    if account.reached:
        return "zero"
    return "unreached" if account.called else "uncalled"


def _size(gradient: Tensor) -> float:
    """Return the root mean square of a gradient, sparse or not, with no underflow."""
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    size = dense.abs()
    peak = float(size.max())
    if peak == 0.0 or peak != peak or peak == torch.inf:
        return peak
    return peak * float((size / peak).square().mean().sqrt())


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
