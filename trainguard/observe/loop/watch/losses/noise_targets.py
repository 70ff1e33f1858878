"""Watches models that are to tell the noise in their input: whether it is there, and its mean."""

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.deferred import to_host
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.noise_scales import NoiseScales
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import start_of
from trainguard.observe.tools.owners import named_tensors, words_in
from trainguard.observe.tools.user_line import caller

_NAMES = {"noise", "noises", "eps", "epsilon", "epsilons"}
_LOOKS = 1024
_VAIN = 64  # passes without noise, after which none is looked for: it is there from the first on
_LARGEST = 2**22  # elements
_NODES = 64  # of the graph, from the loss
_PARTS = 4  # tables that the noise is looked for in
_CLOSE = 1e-5
_DEVIATIONS = 5.0
_EDGE, _PAIRS = 0.05, 16  # scales near 0 and 1 fit any law
_NEAR = 0.01  # of 1: between scales of 0.05 and 0.95 the right law misses these by 0.047 or more
_UNSEEN = 0.03  # a correlation: noise of 3 % of the data is still told from none
_STARTS, _FEWEST = 2048, 256  # evaluations that are looked at, and numbers of one
_SAMPLED = 2**12  # of its numbers
_NORMAL = 0.15  # that a mean and a deviation of so few are off by chance
_BEATEN = 0.98  # of the loss that zero has, the mean of the noise


class NoiseTargets(Watcher):
    """
    The Probe event "noise": noise that is predicted no better than by its mean.

    measured: how far it correlates with what the model is given; reference: five deviations of the
    correlation that independent numbers would have. "noise mean": the mean of all noise that is
    predicted, and its deviation. And "noise scale", where what the model is given is a * data +
    b * noise: how far a law of two scales is missed at most, over so many pairs; the label is the
    law: "a * a + b" where noise is scaled by its variance, "a + b * b" where data are.

    "normal start": evaluations whose input has the shape of the noise, a mean of 0 and a deviation
    of 1, as that which samples begin from.

    latest: the noise that the latest loss is to tell, where it is any.
    """

    makes = ("Probe:noise", "Probe:noise mean", "Probe:noise scale", "Probe:normal start")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._open: tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]] | None = None
        self._rows: list[torch.Tensor] = []
        self._name = self._source = ""
        self.latest: torch.Tensor | None = None
        self._vain = 0
        self._scales = NoiseScales()
        self._shape = torch.Size()  # of the noise of a sample
        self._starts = self._normal = 0

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember a pass with what is called noise, of the shape of what the model returns."""
        if not self.recorder.probe:
            self.recorder.dismiss(self)
            return
        if not forward.gradients or len(self._rows) >= _LOOKS:
            return
        returned = [t for t in tensors_in(output) if t.requires_grad and t.is_floating_point()]
        if not returned or returned[0].dim() < 2 or returned[0].numel() > _LARGEST:
            return
        self._vain += 1
        if not self._rows and self._vain > _VAIN:
            self.recorder.dismiss(self)
        shape, given = returned[0].shape, [t for t in tensors_in(inputs) if t.is_floating_point()]
        named = list(named_tensors())
        for _, name, tensor in named:
            if not words_in(name) & _NAMES or tensor.shape != shape or tensor.requires_grad:
                continue
            if start_of(tensor) in map(start_of, given):
                self.recorder.dismiss(self)  # a model that is given it makes something of it
                return
            parts = list(_find_parts(given, shape))[:_PARTS]
            if parts and tensor.is_floating_point():
                if self.recorder.looks_closer and tensor.is_cpu:
                    self._measure_scales(tensor, parts, [each for _, _, each in named], inputs)
                self._open = tensor.detach(), returned[0].detach(), parts
                self._shape = tensor.shape[1:]
                self._name, self._source = name, caller()

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See whether an input is what samples may begin from."""
        if not self._rows or self._normal or self._starts >= _STARTS:
            return
        self._starts += 1
        given = [t for t in tensors_in(inputs) if t.is_floating_point() and t.is_cpu]
        parts = (
            part
            for tensor in given
            for part in _find_parts([tensor], torch.Size((*tensor.shape[:1], *self._shape)))
        )
        self._normal += any(_is_normal(part) for part in parts)

    def _measure_scales(
        self,
        noise: torch.Tensor,
        parts: list[torch.Tensor],
        named: list[torch.Tensor],
        inputs: tuple[Any, ...],
    ) -> None:
        """Find by how much data and noise are scaled in what was given."""
        others = {start_of(each) for each in (noise, *parts)}
        tables = [
            each
            for each in named
            if each.shape == noise.shape
            and each.is_floating_point()
            and not each.requires_grad
            and start_of(each) not in others
        ]
        times = [each for each in (*tensors_in(inputs), *named) if each.numel() == len(noise)]
        self._scales.add(parts[0], noise, tables, times)

    def before_backward(self, loss: torch.Tensor) -> None:
        """See whether the noise is what the model is to return, and how much of it is given."""
        self.latest = None
        if self._open is None or loss.grad_fn is None:
            return
        (noise, returned, parts), self._open = self._open, None
        with torch.no_grad():
            errors = list(_compare_with(loss, noise, returned))[:1]
            if errors:
                self.latest = noise
                sums = [_correlate(noise, part) for part in parts]
                sums += [torch.zeros_like(sums[0])] * (_PARTS - len(sums))
                self._rows.append(torch.cat([errors[0], *sums]))

    def finish(self) -> Iterable[Event]:
        """Return what is known of noise that was the target in every step looked at."""
        self._open = self.latest = None
        rows = to_host(self._rows)
        if not rows or not all(float(row[0]) for row in rows):
            return
        self.looked |= {"noise", "noise mean"}
        late = rows[-max(1, len(rows) // 4) :]
        lost = sum(float(row[1]) for row in late) / max(sum(float(row[2]) for row in late), 1e-30)
        sums = torch.stack(rows)[:, 3:].sum(0).reshape(_PARTS, 6)
        share = max(_share(*part.tolist()) for part in sums if part[0])
        count, _, y, _, yy, _ = sums[0].tolist()
        limit = _DEVIATIONS / sqrt(count)
        told = {"step": len(rows), "label": self._name, "source": self._source}
        if limit <= _UNSEEN:
            spread = sqrt(max(yy / count - (y / count) ** 2, 0.0))
            yield make_probe("noise mean", y / count, spread, **told)
            if self._normal:
                yield make_probe("normal start", self._normal, self._starts)
        yield from self._tell_scales(told)
        if lost >= _BEATEN and limit <= _UNSEEN:
            yield make_probe("noise", share, limit, **told)

    def _tell_scales(self, told: dict[str, Any]) -> Iterator[Event]:
        """Yield the laws that the scales of data and noise keep, of those that are wrong."""
        inner = [
            (a, b) for a, b in self._scales.pairs if _EDGE < a < 1 - _EDGE and _EDGE < b < 1 - _EDGE
        ]
        if not self._scales.is_sum or len(inner) < _PAIRS:
            return
        self.looked.add("noise scale")
        laws = {
            "a * a + b": [a * a + b for a, b in inner],
            "a + b * b": [a + b * b for a, b in inner],
        }
        for law, values in laws.items():
            far = max(abs(value - 1) for value in values)
            if far <= _NEAR:
                yield make_probe("noise scale", far, len(inner), **told | {"label": law})


def _find_parts(given: list[torch.Tensor], shape: torch.Size) -> Iterator[torch.Tensor]:
    """Yield what of the inputs has the shape of the noise; others may be joined to its side."""
    for tensor in given:
        if tensor.shape == shape:
            yield tensor.detach()
        elif tensor.dim() == len(shape) and tensor.shape[0] == shape[0]:
            for axis in (1, -1):
                size = shape[axis]
                firsts = tensor.detach().narrow(axis, 0, min(size, tensor.shape[axis]))
                lasts = tensor.detach().flip(axis).narrow(axis, 0, firsts.shape[axis]).flip(axis)
                yield from (part for part in (firsts, lasts) if part.shape == shape)


def _is_normal(numbers: torch.Tensor) -> bool:
    """Say whether many numbers have a mean of 0 and a deviation of 1."""
    if not _FEWEST <= numbers.numel() <= _LARGEST:
        return False
    deviation, mean = torch.std_mean(sample_elements(numbers, _SAMPLED).double())
    return bool(abs(mean) <= _NORMAL and abs(deviation - 1) <= _NORMAL)


def _compare_with(
    loss: torch.Tensor, noise: torch.Tensor, returned: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yield for errors below a loss: whether they are of the noise, their size, and that of it."""
    for node in autograd_graph.below(loss.grad_fn, _NODES):
        target, own = (autograd_graph.saved(node, name) for name in ("target", "self"))
        if not isinstance(own, torch.Tensor) or own.shape != noise.shape:
            continue
        if isinstance(target, torch.Tensor) and target.shape == noise.shape:
            flat = target.flatten(1).double(), noise.flatten(1).double()
            alike = torch.cosine_similarity(flat[0], flat[1], dim=1).abs() >= 1 - _CLOSE
            error, size = own - target, target
        elif autograd_graph.kind_of(node) in ("PowBackward", "AbsBackward"):
            difference = returned - noise
            far = torch.minimum((difference - own).abs().max(), (difference + own).abs().max())
            alike, error, size = far <= _CLOSE * noise.abs().max(), own, noise
        else:
            continue
        numbers = alike.all(), error.square().sum(), size.square().sum()
        yield torch.stack([number.double() for number in numbers])


def _correlate(noise: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return the sums that a correlation is made of."""
    x, y = part.double(), noise.double()
    sums = x.sum(), y.sum(), x.square().sum(), y.square().sum(), (x * y).sum()
    return torch.stack([torch.full_like(sums[0], noise.numel()), *sums])


def _share(count: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Return the correlation of two columns, without its sign."""
    spread = (xx - x * x / count) * (yy - y * y / count)
    return abs(xy - x * y / count) / sqrt(spread) if spread > 0 else 1.0
