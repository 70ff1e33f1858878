"""
Find out whether some outputs depend on inputs that they must not depend on.

One backward pass from the outputs in question says which inputs they depend on. What it suspects is
looked at again in float64 and edited, and the outputs are compared: only what they show is a leak.
Where no gradient leads to an input, such as to integers that no `nn.Embedding` takes, it is edited
and compared at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainguard.events.trace import Pass
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.model.comparison import apart
from trainguard.observe.model.frozen_copy import FrozenCopy, plain_kernels, tapping
from trainguard.observe.model.model_case import Inputs, ModelCase
from trainguard.observe.model.outputs import Outputs
from trainguard.observe.tools.user_line import find_method_line

_SLIGHT_CHANGE = 1e-6
_SLIGHT = {True: 1e-9, False: 1e-6}  # of the largest gradient: rounding, in float64 and in float32
_NOISE = 16.0


@dataclass(frozen=True)
class Positions:
    """The positions of a dimension of a given size that must not change; `chosen` is a mask."""

    size: int
    chosen: Tensor

    def of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the part of each tensor with exactly one axis of that size."""
        index = self.chosen.nonzero().flatten()
        return [
            tensor.index_select(tensor.shape.index(self.size), index.to(tensor.device))
            for tensor in tensors
            if list(tensor.shape).count(self.size) == 1 and tensor.is_floating_point()
        ]


@dataclass
class Trail:
    """The calls of all modules in one call of the model, in the order in which they end."""

    part: Positions
    calls: list[tuple[str, nn.Module, list[Tensor], list[Tensor]]] = field(default_factory=list)

    def follow(self, specimen: FrozenCopy, inputs: Inputs) -> "Trail":
        """Call a copy of the model, and note what goes into each module and comes out."""
        model = specimen.copy()
        handles = [
            module.register_forward_hook(self._noting(name), with_kwargs=True)
            for name, module in model.named_modules()
        ]
        with torch.no_grad(), plain_kernels():
            specimen.network.call(model, inputs)
        for handle in handles:
            handle.remove()
        return self

    def _noting(self, name: str) -> Any:
        """Return a hook that notes the calls of one module."""

        def hook(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
            """Note one call."""
            given = self.part.of(list(tensors_in([args, keywords])))
            self.calls.append((name, module, given, self.part.of(list(tensors_in(output)))))

        return hook


def first_module(
    specimen: FrozenCopy, part: Positions, before: Inputs, after: Inputs
) -> tuple[str, str]:
    """
    Return the innermost module whose part changes though that of its inputs does not.

    With it goes the place of its forward in the user's code, where it stands there. Both are empty
    where no single module did it, or none can be told apart.
    """
    first, second = (Trail(part).follow(specimen, inputs) for inputs in (before, after))
    for one, two in zip(first.calls, second.calls, strict=False):
        name, module, given, made = one
        if name != two[0]:
            break
        if name and given and not _differ(given, two[2]) and _differ(made, two[3]):
            return f"`{name}` ({type(module).__name__})", find_method_line(module, "forward")
    return "", ""


def _differ(some: list[Tensor], others: list[Tensor]) -> bool:
    """Say whether two lists of tensors differ by more than rounding."""
    if [t.shape for t in some] != [t.shape for t in others]:
        return True
    pairs = ((a.double(), b.double()) for a, b in zip(some, others, strict=True) if a.numel())
    return any(float((a - b).abs().max()) > _SLIGHT_CHANGE * float(a.abs().max()) for a, b in pairs)


@dataclass(frozen=True)
class DependencyQuestion:
    """
    Which part of the outputs must not depend on which part of the inputs.

    own: for each output, masks of its elements; where it is not certain how it is laid out there
        are several, and one of them must hold.
    foreign: for each input, a mask of the elements that must not matter.
    part: the same of what is between them, where it is a part of one dimension.
    """

    own: Mapping[str, list[Tensor]]
    foreign: Mapping[str, Tensor]
    part: Positions | None = None


@dataclass(frozen=True)
class Leak:
    """
    How much one output changed, relative to its largest value, when an input was edited.

    module, source: where in the model it leaks first, and the user's code of that, where known.
    """

    output: str
    input: str
    change: float
    module: str = ""
    source: str = ""


def leaks(specimen: FrozenCopy, question: DependencyQuestion) -> Iterator[Leak]:
    """Yield what leaks from each input into each output; nothing where nothing does."""
    inputs = specimen.draw()
    suspects = _suspects(specimen, question, inputs, 0.0)
    if not any(sure or _moves(specimen, question, inputs, n) for n, sure in suspects.items()):
        return
    specimen = specimen.precise()
    inputs = specimen.draw()
    suspects = _suspects(specimen, question, inputs, _SLIGHT[specimen.double])
    first, same = specimen.first(), specimen.call(inputs)
    # Where nothing but an edit speaks, what is drawn at random must not.
    other = specimen.call(inputs, seed=1) if not all(suspects.values()) else same
    for name, sure in suspects.items():
        edited = _edit(specimen, inputs, name, question.foreign[name])
        after, where = specimen.call(edited), ("", "")
        for output, masks in question.own.items():
            noise = _change(first, same if sure else other, output, masks)
            change = _change(after, first, output, masks)
            if change > _NOISE * noise:
                if question.part is not None and not any(where):
                    where = first_module(specimen, question.part, inputs, edited)
                yield Leak(output, name, change, *where)


def _moves(specimen: FrozenCopy, question: DependencyQuestion, inputs: Inputs, name: str) -> bool:
    """Say whether an output in question is moved at all by an edit of one input."""
    after = specimen.call(_edit(specimen, inputs, name, question.foreign[name]))
    own = question.own.items()
    return any(_change(after, specimen.first(), output, masks) for output, masks in own)


def leak_events(
    network: ModelCase, quantity: str, question: DependencyQuestion, found: Iterable[Leak], at: str
) -> Iterator[Pass]:
    """Yield one event for each output: its worst leak, or 0 where nothing leaks into it."""
    worst: dict[str, Leak] = {}
    for leak in sorted(found, key=lambda leak: leak.change):
        worst[leak.output] = leak
    for output in question.own:
        leak = worst.get(output, Leak(output, "", 0.0))
        yield network.make_event(
            quantity,
            place=output,
            at=f"{at}, where `{leak.input}` is edited" if leak.input else at,
            measured=leak.change,
            detail=leak.module,
            source=leak.source,
        )


def _suspects(
    specimen: FrozenCopy, question: DependencyQuestion, inputs: Inputs, slight: float
) -> dict[str, bool]:
    """Return the inputs that may leak, and of each whether it is a gradient that says so."""
    try:
        found = _gradients(specimen, question, inputs)
    except Exception:  # noqa: BLE001 no graph, or one that the model's own backward refuses
        return dict.fromkeys(question.foreign, False)
    largest = max((size for _, size, _ in found), default=0.0)
    tapped = {name for name, _, _ in found}
    suspected = {name for name, _, leak in found if not leak <= slight * largest}
    unknown = question.foreign if not largest else question.foreign.keys() - tapped
    return {n: n in suspected for n in question.foreign if n in suspected or n in unknown}


def _gradients(
    specimen: FrozenCopy, question: DependencyQuestion, inputs: Inputs
) -> list[tuple[str, float, float]]:
    """Return (input, largest gradient, largest where it must be zero) from one backward pass."""
    module = specimen.copy()
    with torch.enable_grad(), plain_kernels(), tapping(module, inputs, question.foreign) as taps:
        outputs = specimen.network.call(module, taps.inputs)
        gradients = torch.autograd.grad(
            _sum_signed(outputs, question), [leaf for _, leaf in taps.leaves], allow_unused=True
        )
    found = []
    for (name, leaf), gradient in zip(taps.leaves, gradients, strict=True):
        if gradient is not None:
            foreign = _over(question.foreign[name], leaf)
            leak = torch.where(foreign, gradient.abs(), 0.0).max()
            found.append((name, float(gradient.abs().max()), float(leak)))
    return found


def _sum_signed(outputs: Outputs, question: DependencyQuestion) -> Tensor:
    """Return the sum of the outputs in question with random signs, each output scaled alike."""
    generator = Generator().manual_seed(0)
    parts = []
    for name, masks in question.own.items():
        tensor = outputs.tensors[name]
        if tensor.requires_grad:
            signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
            chosen = torch.where(masks[0].to(tensor.device), tensor * signs, 0.0)
            parts.append(chosen.sum() / tensor.detach().abs().max().clamp_min(1e-30))
    if not parts:
        raise RuntimeError("no output has a graph")
    return torch.stack(parts).sum()


def _over(mask: Tensor, leaf: Tensor) -> Tensor:
    """Return the mask of an input's elements as one of its embedding's."""
    return mask.view(*mask.shape, *[1] * (leaf.ndim - mask.ndim)).expand(leaf.shape).to(leaf.device)


def _edit(specimen: FrozenCopy, inputs: Inputs, name: str, foreign: Tensor) -> Inputs:
    """Return the inputs with others in the elements of one that must not matter."""
    value, other = inputs[name], specimen.draw(seed=1)[name]
    domain = specimen.network.model.tensors[name]
    if domain.kind == "integer":
        low, high = map(int, domain.span(specimen.network.sizes))
        other = torch.where(other == value, low + (other - low + 1) % (high - low + 1), other)
    return {**inputs, name: torch.where(foreign.to(value.device), other, value)}


def _change(one: Outputs, other: Outputs, name: str, masks: list[Tensor]) -> float:
    """Return how far an output is apart in the elements in question, in the best of its layouts."""
    a, b = one.tensors.get(name), other.tensors.get(name)
    if a is None or b is None or a.shape != b.shape:  # how much comes out depends on what goes in
        return 0.0
    return min((apart(a, b, mask.cpu()) for mask in masks), default=0.0)
