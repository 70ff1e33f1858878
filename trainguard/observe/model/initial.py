"""The probe `initial`: what a model gives before it is trained, from several seeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainguard.core.errors import SubjectError, did_you_mean
from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import Inputs, ModelCase, backward, hookable
from trainguard.observe.model.outputs import Outputs

_WITHOUT_MEAN = ("sum", "none")
SEEDS = 4


class CrossEntropyCalls(TorchFunctionMode):
    """
    Keeps every mean cross-entropy that is taken inside the block.

    taken: (number of classes, value) of each, in order. One with class weights, smoothed labels
    or soft targets has another value at a uniform guess, and is left out; a contrastive one too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, float]] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch, and keep what it returned where it is a cross-entropy."""
        given = dict(keywords or {})
        returned = function(*args, **given)
        if function is functional.cross_entropy and _is_plain(given):
            logits = args[0] if args else given["input"]
            target = args[1] if len(args) > 1 else given["target"]
            if isinstance(returned, Tensor) and _are_labels(target):
                classes = logits.shape[1] if logits.ndim > 1 else logits.shape[0]
                self.taken.append((int(classes), float(returned.detach())))
        return returned


def _are_labels(target: Tensor) -> bool:
    """
    Say whether targets are labels, and not soft ones or places.

    In a contrastive loss the target is the place of the partner in the batch: 0, 1, 2, ... or
    always 0. Its logits are divided by a temperature and far from those of a guess.
    """
    if target.is_floating_point() or target.numel() < 2:
        return False
    jumps = target.flatten().diff()
    return not bool((jumps == 0).all() or (jumps == 1).all())


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Say whether a cross-entropy is a mean over all classes alike."""
    weighted = given.get("weight") is not None or given.get("label_smoothing")
    return not weighted and given.get("reduction", "mean") not in _WITHOUT_MEAN


def observe(network: ModelCase) -> Iterator[Pass]:
    """
    Measure fresh models: four seeds in the first case, one in the others, and one evaluation.

    "output": the lowest (`measured`) and highest (`reference`) finite element of one output;
        `count` of its elements are no numbers, `detail` says where the first came from.
    "loss": the loss, declared or the model's own.
    "entropy": a cross-entropy that was taken in it, against the logarithm of its classes.
    """
    for seed in range(SEEDS if network.case == 0 else 1):
        module = network.build(seed)
        yield from _measure(network, module, seed)
        if seed == 0:
            yield from _measure_evaluation(network, module)


def _measure(network: ModelCase, module: nn.Module, seed: int) -> Iterator[Pass]:
    """Measure a model in training mode on one batch, and its loss."""
    inputs, at = network.draw(seed), f"seed {seed}"
    # With gradients: a model may take one of its own energy.
    with CrossEntropyCalls() as entropy:
        outputs = network.call(module, inputs)
        loss = network.loss(outputs, inputs)
    _check_promises(network, outputs, loss)
    for name, tensor in outputs.tensors.items():
        yield _output(network, module, inputs, name, tensor, at)
    if loss is not None:
        yield network.make_event("loss", at=at, measured=float(loss.detach()))
        yield from _entropies(network, entropy, at)


def _measure_evaluation(network: ModelCase, module: nn.Module) -> Iterator[Pass]:
    """Measure the outputs in evaluation mode, where it may return other things than in training."""
    inputs = network.draw()
    try:
        outputs = network.call(module.eval(), inputs)
    except SubjectError as fault:
        if fault.__cause__ is not None:
            raise
        return  # decoded texts or boxes: nothing that could be no number
    for name, tensor in outputs.tensors.items():
        yield _output(network, module, inputs, name, tensor, "evaluation mode")


def _output(
    network: ModelCase, module: nn.Module, inputs: Inputs, name: str, tensor: Tensor, at: str
) -> Pass:
    """Measure the range of one output, and what in it is no number."""
    tensor = tensor.detach()
    sound = tensor[tensor.isfinite()]
    low, high = (sound.min(), sound.max()) if sound.numel() else (torch.nan, torch.nan)
    count, detail = 0, ""
    if sound.numel() < tensor.numel():
        count, detail = _unsound(network, module, inputs, tensor)
    return network.make_event(
        "output",
        place=name,
        at=at,
        measured=float(low),
        reference=float(high),
        count=count,
        of=tensor.numel(),
        detail=detail,
    )


def _unsound(
    network: ModelCase, module: nn.Module, inputs: Inputs, tensor: Tensor
) -> tuple[int, str]:
    """
    Return how many elements are no numbers, and the module that made the first of them.

    An infinity that a mask has put there is meant: nothing then flows back from it. One that was
    computed makes the gradients infinite or nan.
    """
    lost = int((~tensor.isfinite()).sum())
    if not tensor.isnan().any() and _gradients_are_finite(network, module, inputs):
        return 0, "infinite on purpose"
    return lost, origin(module, lambda: network.call(module, inputs))


def _gradients_are_finite(network: ModelCase, module: nn.Module, inputs: Inputs) -> bool:
    """Say whether a backward pass gives every parameter a gradient of numbers."""
    module.zero_grad(set_to_none=True)
    outputs = network.call(module, inputs)
    # In evaluation the outputs may be none that the loss takes.
    objective = network.objective(outputs, inputs) if module.training else outputs.projection()
    if not objective.requires_grad:
        return False
    try:
        backward(objective)
    except SubjectError:
        if module.training:
            raise
        return True  # nobody goes back from evaluation: nothing is known
    found = [p.grad for p in module.parameters() if p.grad is not None]
    return bool(found) and all(bool(gradient.isfinite().all()) for gradient in found)


def _entropies(network: ModelCase, entropy: CrossEntropyCalls, at: str) -> Iterator[Pass]:
    """Yield the cross-entropies of a model that starts from random weights."""
    if network.is_seeded:
        for index, (classes, value) in enumerate(entropy.taken):
            place = f"cross_entropy over {classes} classes"
            place += f", call {index + 1}" if index else ""
            yield network.make_event("entropy", place=place, at=at, measured=value, of=classes)


def _check_promises(network: ModelCase, outputs: Outputs, loss: Tensor | None) -> None:
    """Raise for a promise about an output that there is none of, and about a loss without one."""
    check_globs("initial_range", network.model.ranges, outputs.tensors)
    if network.model.expected_loss is not None and loss is None:
        raise SubjectError(
            "a loss before training is promised, and there is none",
            "declare loss=, or return an output that is called 'loss'",
        )


def check_globs(option: str, globs: Iterable[str], names: Iterable[str]) -> None:
    """Raise for a glob of an option that fits none of the names."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            near = did_you_mean(glob, names).strip().rstrip(".")
            raise SubjectError(f"its {option} names {glob!r}, which it does not have", near)


def origin(module: nn.Module, run: Callable[[], Any]) -> str:
    """
    Run a model and name the innermost module whose output is not finite though its inputs are.

    Returns "`encoder.norm` (LayerNorm)", or nothing where no single module did it.
    """
    parts = hookable(module)
    names = {id(part): name for name, part in parts.items()}
    found: list[str] = []

    def look(part: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        """Keep a module that turned numbers into none."""
        if not found and not _sound(output) and _sound([args, keywords]):
            name = names[id(part)] or type(module).__name__
            found.append(f"`{name}` ({type(part).__name__})")

    handles = [part.register_forward_hook(look, with_kwargs=True) for part in parts.values()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


def _sound(value: Any) -> bool:
    """Say whether all floating-point tensors in some arguments or outputs are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_sound(part) for part in value.values())
    return all(_sound(part) for part in value) if isinstance(value, tuple | list) else True
