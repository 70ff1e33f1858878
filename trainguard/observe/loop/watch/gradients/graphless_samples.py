"""Watches samples of distributions that are drawn without a graph, and what they are used for."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import distributions

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.policy_weights import LOG_PROBABILITY
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32}  # that are looked at
_MOST_NODES = 20000
_MOST_SAMPLES = 8  # of a step
_LARGEST = 2**22  # elements of what is compared
_MARK = "trainguard: parameter of a distribution"
_SAVED = ("mat1", "input", "self", "other", "tensor1")


@dataclass(slots=True, eq=False)
class _Sample:
    """A sample: its values, and the differences from the parameters of its distribution."""

    kind: str
    source: str
    shape: tuple[int, ...]
    column: torch.Tensor
    differences: list[torch.Tensor]


class GraphlessSamples(Watcher):
    """
    The Probe event "sample": a sample that a loss depends on, which has no graph.

    Only samples that could have one, of distributions whose parameters the same loss trains by
    another term: that of a variational autoencoder which is no likelihood.
    """

    makes = ("Probe:sample",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._depth = 0
        self._knows = False  # whether the script has drawn a sample with its graph
        self._samples: list[_Sample] = []
        self._seen: dict[str, int] = {}
        self._found: dict[str, tuple[int, _Sample]] = {}

    def install(self, patches: Patches) -> None:
        """Be told of samples with a graph and without one."""
        for kind in vars(distributions).values():
            for name in ("sample", "rsample"):
                if isinstance(kind, type) and name in vars(kind):
                    patches.replace(kind, name, self._drawing)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for the samples in the graph of a loss."""
        samples, self._samples = self._samples, []
        if not samples or self._knows or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES or any(LOG_PROBABILITY in node.metadata for node in nodes):
            return
        trained = [sample for node in nodes for sample in node.metadata.get(_MARK, ())]
        saved = [tensor for node in nodes for tensor in _saved_by(node)]
        for sample in samples:
            if sample in trained:
                self.looked.add("sample")
                self._seen[sample.source] = self._seen.get(sample.source, 0) + 1
                if _is_used(sample, saved):
                    count = self._found.get(sample.source, (0, sample))[0]
                    self._found[sample.source] = count + 1, sample

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, (count, sample) in ({} if self._knows else self._found).items():
            yield Probe(
                probe="sample",
                measured=float(count),
                reference=float(self._seen[source]),
                label=f"{sample.kind} of shape {sample.shape}",
                source=source,
            )

    def _drawing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `sample` or `rsample` that tells of what it returns."""
        compiling, graphless = torch.compiler.is_compiling, original.__name__ == "sample"

        @wraps(original)
        def wrapper(distribution: Any, *args: Any, **kwargs: Any) -> Any:
            """Draw the sample; distributions draw from others inside of them."""
            if compiling() or self._depth or not self.recorder.is_looking():
                return original(distribution, *args, **kwargs)
            self._depth += 1
            try:
                sample = original(distribution, *args, **kwargs)
            finally:
                self._depth -= 1
            if torch.is_grad_enabled():
                self._take(distribution, sample, graphless)
            return sample

        return wrapper

    @shielded
    def _take(self, distribution: Any, sample: torch.Tensor, graphless: bool) -> None:
        """Take down a sample that could have had a graph."""
        if self._knows or not (distribution.has_rsample and self.recorder.age in _STEPS):
            return
        parameters = [t for t in _parameters_of(distribution) if t.grad_fn is not None]
        rows = len(sample) if sample.dim() else 0
        if not graphless:
            self._knows = bool(parameters)
        elif parameters and 1 < rows < sample.numel() <= _LARGEST:
            with torch.no_grad():
                alike = [p for p in parameters if p.shape == sample.shape]
                taken = _Sample(
                    type(distribution).__name__,
                    caller(),
                    tuple(sample.shape),
                    sample.detach().reshape(rows, -1)[:, 0].clone(),
                    [sample - parameter.detach() for parameter in alike],
                )
            self._samples = [*self._samples[1 - _MOST_SAMPLES :], taken]
            for parameter in parameters:
                node: Node = parameter.grad_fn
                node.metadata[_MARK] = [*node.metadata.get(_MARK, ()), taken]


def _parameters_of(distribution: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a distribution, or the one inside of it, was made of."""
    for value in vars(distribution).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, distributions.Distribution):
            yield from _parameters_of(value)


def _saved_by(node: Node) -> Iterator[torch.Tensor]:
    """Yield the numbers that an operation has kept for its way back."""
    for name in _SAVED:
        with suppress(Exception):  # what was changed since cannot be read
            kept = autograd_graph.saved(node, name)
            if isinstance(kept, torch.Tensor) and kept.is_floating_point() and kept.dim() > 1:
                yield kept.detach()


def _is_used(sample: _Sample, saved: list[torch.Tensor]) -> bool:
    """Say whether a sample is multiplied by something that learns, and is not scored itself."""
    with suppress(Exception):  # tensors of foreign kinds refuse what they like
        for tensor in saved:
            for difference in sample.differences:
                if tensor.shape == difference.shape and torch.equal(tensor.abs(), difference.abs()):
                    return False
        return any(_has_column(tensor, sample.column) for tensor in saved)
    return False


def _has_column(tensor: torch.Tensor, column: torch.Tensor) -> bool:
    """Say whether some numbers, one for each row, are among those of a tensor."""
    if len(tensor) != len(column) or tensor.requires_grad or tensor.numel() > _LARGEST:
        return False
    return bool((tensor.reshape(len(tensor), -1) == column[:, None]).all(0).any())
