"""What noise is scaled by in `mean + scale * noise`, against what a divergence takes it for."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Numbers, Witness
from trainguard.observe.tools.user_line import caller

_FITS, _MISFITS = 1e-3, 1e-2  # of the norm of a gradient that is left over, in float32
_ALIKE = 0.02  # of the pull at means that belongs to that at scales
_LEAST = 16  # numbers of a scale
_VARIANCE = 2  # the number of that claim: what is below zero is none
_LINKS = 8  # operations from what a network returns to the scale
_MOST_TENSORS = 100000  # that are followed
_DRAWN = ("randn", "randn_like", "normal_", "normal", "_standard_normal")
_grad = torch.autograd.grad  # that of torch: a recorder listens to the other one


class ScaleOfNoise(Question):
    """
    The divergence that pulls at a mean and a scale is held against the noise added to the mean.

    measured: how many scales of noise are taken by it for something else; reference: how many there
    are; smallest: the line of the noise; label: what is taken for what.
    """

    name = "scale of noise"
    asks = 6  # a scale that begins as one number tells nothing before it has been learned
    waits = True

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether noise is scaled, the step as it is has told."""
        return "noise left out"

    def applies(self, plain: Report) -> bool:
        """Say whether something like normal noise was multiplied by what learns."""
        return bool(plain["noise"]) and not plain["compiled"]

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Follow noise from where it is drawn to what it is added to."""
        self._noises = _Noises()
        self._noises.__enter__()  # type: ignore[no-untyped-call]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks at what pulls at scales, besides what is sampled with them."""
        return _ScaleReader(call, way_out, self)

    def find(self, loss: torch.Tensor) -> list[tuple[bool, int, str]]:
        """Return for each noise whether its scale is one, what for it is taken, and its line."""
        found = [(_judge(loss, each), each.line) for each in self._noises.found]
        return [(*judged, line) for judged, line in found if judged is not None]

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count those that are taken for something else."""
        wrong = [(claim, line) for consistent, claim, line in edited["scales"] if not consistent]
        count = float(len(edited["scales"]))
        if not wrong:
            return Contrast(0.0, count)
        claim, line = wrong[0]
        return Contrast(float(len(wrong)), count, (float(claim),), smallest=line)

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer that knows is enough."""
        return contrast.reference > 0


class _Noise(NamedTuple):
    """A mean, a scale and what both came from, link by link, and the sum with noise."""

    mean: torch.Tensor
    links: list[torch.Tensor]
    sample: torch.Tensor
    line: str


class _Noises(TorchFunctionMode):
    """Follows noise from where it is drawn, and scales to where they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Noise] = []
        self._kept: list[torch.Tensor] = []  # an identity is that of one tensor alone
        self._noise = set[int]()
        self._scaled: dict[int, torch.Tensor] = {}  # what was multiplied by noise, by the product
        self._before: dict[int, torch.Tensor] = {}  # the one tensor that another was made of

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and look at what it returns."""
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and len(self._kept) < _MOST_TENSORS:
            self._take(getattr(function, "__name__", ""), args, result)
        return result

    def _take(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Take down noise, its products, their sums with a mean, and how scales are made."""
        self._kept.append(result)
        given = [each for each in args if isinstance(each, torch.Tensor)]
        live = [each for each in given if each.requires_grad]
        if result.grad_fn is None:
            if name in _DRAWN:
                self._noise.add(id(result))
            return
        if len(live) == 1:
            one = live[0]
            if any(id(each) in self._noise and each.shape == one.shape for each in given):
                self._scaled[id(result)] = one
            elif one.shape == result.shape and one is not result:
                self._before[id(result)] = one
        products = [each for each in given[:2] if id(each) in self._scaled]
        if len(live) == 2 and len(products) == 1 and name.startswith(("add", "__radd__")):
            self._add(products[0], live, result)

    def _add(self, product: torch.Tensor, parts: list[torch.Tensor], result: torch.Tensor) -> None:
        """Take down a sum of a mean and noise of a scale."""
        mean = parts[0] if parts[1] is product else parts[1]
        links = [self._scaled[id(product)]]
        while len(links) < _LINKS and id(links[-1]) in self._before:
            links.append(self._before[id(links[-1])])
        if mean.shape == links[0].shape and mean.numel() >= _LEAST:
            self.found.append(_Noise(mean, links, result, caller(2)))


class _ScaleReader(Witness):
    """Ends the child with what is found of scales, before gradients are computed."""

    def __init__(self, call: ModuleCall, way_out: Exit, question: ScaleOfNoise) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._question = question

    def before_backward(self, loss: torch.Tensor) -> None:
        """Report."""
        self.way_out.report(scales=self._question.find(loss))


def _judge(loss: torch.Tensor, noise: _Noise) -> tuple[bool, int] | None:
    """
    Return whether a divergence takes a scale for what it is, and for what else (a number) if not.

    A divergence of N(m, s^2) from N(n, v) pulls at m by (m - n) / v, and at s by s / v - 1 / s. Its
    second derivative by m tells 1 / v, times whatever the divergence is weighed by.
    """
    handle = noise.sample.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
    bend = _bend(loss, noise.mean)
    pulls = _grad(loss, noise.links, retain_graph=True, allow_unused=True)
    handle.remove()
    if bend is None:
        return None
    scale, wrong = _numbers(noise.links[0]), None
    for link, gradient in zip(noise.links, pulls, strict=True):
        if gradient is None or not bool(gradient.any()):
            continue
        slope = _numbers(_grad(noise.links[0].sum(), [link], retain_graph=True)[0])
        pull, own = _numbers(gradient), [scale * bend * slope, slope / scale]
        if _left_over(own[0], own[1:]) < _MISFITS:
            return None  # a scale that is the same everywhere fits anything
        if _is_pull(pull, own[0], own[1], 1.0):
            return True, 0
        if _left_over(pull, own) > _MISFITS and wrong is None:
            wrong = _find_claim(pull, _numbers(link), bend, np.ones_like(scale))
            wrong = _find_claim(pull, scale, bend, slope) if wrong is None else wrong
    return None if wrong is None else (False, wrong)


def _bend(loss: torch.Tensor, mean: torch.Tensor) -> Numbers | None:
    """Return the second derivative of a loss by a mean; nothing where no divergence has one."""
    (pull,) = _grad(loss, [mean], create_graph=True, allow_unused=True)
    if pull is None or not pull.requires_grad:
        return None
    (bend,) = _grad(pull.sum(), [mean], retain_graph=True, allow_unused=True)
    return None if bend is None or not bool((bend > 0).all()) else _numbers(bend)


def _find_claim(pull: Numbers, value: Numbers, bend: Numbers, slope: Numbers) -> int | None:
    """Return the number of what a divergence takes a value for, if it takes it for anything."""
    bases = [(np.exp(value) * bend, slope, 0.5), (np.exp(2 * value) * bend, slope, 1.0)]
    bases = [(rising * slope, falling, weight) for rising, falling, weight in bases]
    if value.all():  # a square has no sign
        falling = slope / value
        bases += [(bend * slope, falling, 0.5), (value * bend * slope, falling, 1.0)]
    for place, (rising, falling, weight) in enumerate(bases):
        able = place != _VARIANCE or bool((value > 0).all())
        if able and _is_pull(pull, rising, falling, weight):
            return place
    return None


def _is_pull(pull: Numbers, rising: Numbers, falling: Numbers, weight: float) -> bool:
    """Say whether a pull is one part with its weight, less some of another part."""
    basis = np.stack([rising, -falling], 1)
    if not np.isfinite(basis).all() or _left_over(pull, [rising, falling]) >= _FITS:
        return False
    found = np.linalg.lstsq(basis, pull, rcond=None)[0]
    return bool(abs(found[0] / weight - 1) < _ALIKE and found[1] > 0)


def _left_over(pull: Numbers, basis: list[Numbers]) -> float:
    """Return the share of a pull that a sum of others cannot make."""
    columns = np.stack(basis, 1)
    found = np.linalg.lstsq(columns, pull, rcond=None)[0]
    return float(np.linalg.norm(pull - columns @ found) / np.linalg.norm(pull))


def _numbers(tensor: torch.Tensor) -> Numbers:
    """Return the numbers of a tensor in a row."""
    values: Numbers = tensor.detach().reshape(-1).double().cpu().numpy()
    return values
