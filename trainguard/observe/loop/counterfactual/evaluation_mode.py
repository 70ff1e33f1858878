"""Evaluation mode: whether a model that looks at its mode is the same model in both."""

from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Numbers, Witness, sketch
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.forwards import Forwards
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.local_values import storage_of

_SEEDS = 3  # that noise is drawn from beside the step's own: the highest of four losses counts
_GROSS = 1.0  # of the highest loss in training mode: what is harder in evaluation costs less
_MOST_CALLS = 1024  # of modules that are compared
_STRUCK = 0.05  # of the numbers, and as many that are kept: what dropout by hand leaves at least
# What of torch works otherwise in training: dropout strikes, statistics are those of the batch.
_TWO_SIDED = (
    nn.modules.dropout._DropoutNd,  # noqa: SLF001 what all of them derive from
    nn.modules.batchnorm._NormBase,  # noqa: SLF001 the same
    nn.RNNBase,
    nn.RReLU,
)
# Of a module: its name, what it was given, what it returned, and some numbers of that.
_Call = tuple[str, int, int, Numbers]


class EvaluationMode(Question):
    """
    What the user's own modules do in evaluation mode; those of torch stay as they are.

    measured: the loss then; reference: the highest of those in training mode, of several seeds
    where other noise is drawn; numbers: the latter; smallest: the first module that is another one.
    Void where modules keep numbers of what they have seen, or are shown what they are to predict,
    and where noise is another one than dropout by hand that keeps numbers as they are.
    """

    name = "evaluation mode"
    needs_follow_ups = True
    _measured_by: frozenset[str] = frozenset()

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed  # of a follow-up, in training mode: 0 is the step's own
        self._edited, self._highest = Report(), list[float]()
        self._draws, self._first = False, ""

    def fits(self, call: ModuleCall) -> str:
        """Ask where a model looks at its mode, and was evaluated with a loss function."""
        looking = [part for part in call.module.modules() if _looks_at_its_mode(part)]
        evaluated = call.module in call.recorder.watcher(Forwards).evaluated
        if not (call.module.training and looking and evaluated):
            return ""
        self._measured_by = call.recorder.watcher(LossFunctions).measured_by
        names = sorted({type(part).__name__ for part in looking})
        return "modules that look at their mode: " + ", ".join(names)

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Switch the model over, but for what is torch's, or draw other noise."""
        if self._seed is None:
            modes = {part: part.training for part in call.module.modules() if _is_torchs(part)}
            call.module.eval()
            for part, mode in modes.items():
                part.training = mode
        elif self._seed:
            torch.default_generator.manual_seed(self._seed)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that follows the calls of modules."""
        return _ModeWitness(call, way_out)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Compare the losses, where the same loss functions are given the same targets."""
        if not plain["given"] or plain["given"] != edited["given"]:
            return Contrast(void="loss functions are given something else to compare with")
        if not {function for function, _ in plain["given"]} <= self._measured_by:
            return Contrast(void="its loss functions measure nothing in evaluation mode")
        if plain["returned"] is None or plain["returned"].shape != edited["returned"].shape:
            return Contrast(void="the model returns something else in evaluation mode")
        self._edited, self._highest = edited, [plain["loss"]]
        self._draws = plain["streams"] != edited["streams"]
        return Contrast(edited["loss"], plain["loss"], (plain["loss"],))

    def follow_ups(self, contrast: Contrast) -> "Sequence[Question]":
        """Look closer where the loss is far higher: at other noise, and at who is another one."""
        if contrast.void or not is_gross(contrast.measured, contrast.reference):
            return ()
        return [EvaluationMode(seed) for seed in range(1 + _SEEDS * self._draws)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Take the highest loss of all; say who is another one, where no noise is drawn."""
        if edited["keeps"]:
            return Contrast(void=f"{edited['keeps']} keeps numbers of what it has seen")
        if len(self._highest) == 1:
            other = _first_other(edited["calls"], self._edited["calls"])
            if self._draws and not (other and _is_struck(*(each[3] for each in other))):
                return Contrast(void="other noise is drawn than dropout by hand")
            self._first = other[0][0] if other else ""
        self._highest.append(edited["loss"])
        if len(self._highest) < 2 + _SEEDS * self._draws:
            return None
        losses = tuple(self._highest)
        return contrast._replace(reference=max(losses), numbers=losses, smallest=self._first)

    def is_settled(self, contrast: Contrast) -> bool:
        """One that is not grossly higher is enough."""
        return not is_gross(contrast.measured, contrast.reference)


class _ModeWitness(Witness):
    """Reports the calls of modules too, and who of the user's keeps numbers."""

    def __init__(self, call: ModuleCall, way_out: Exit) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._names = {
            part: describe_part(part, name) for name, part in call.module.named_modules()
        }
        self._own = [part for part in self._names if not _is_torchs(part)]
        self._before = {part: _numbers_of(part) for part in self._own}
        self._shown = [*tensors_in((call.args, call.kwargs))]
        self._calls = list[_Call]()
        register_module_forward_hook(self._on_call)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Give up where the model is shown its targets: it may have to do without on purpose."""
        if any(_is_shown(target, tensor) for tensor in self._shown):
            self.way_out.void("the model is shown what it is to predict")
        super().on_loss(tally, scores, target, value)

    def _on_call(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Take down a call, in the order in which calls end."""
        if module in self._names and len(self._calls) < _MOST_CALLS:
            returned = list(tensors_in(output))
            numbers = sketch(returned[:1], keeps_norms=False)
            marks = fingerprint(tensors_in(inputs)), fingerprint(returned)
            self._calls.append((self._names[module], *marks, numbers))

    def more(self) -> Report:
        """Return the calls, and the first module that keeps numbers."""
        changed = (part for part in self._own if _numbers_of(part) != self._before[part])
        keeps = next((type(part).__name__ for part in changed), "")
        return {"calls": self._calls, "keeps": keeps}


def is_gross(measured: float, reference: float) -> bool:
    """Say whether a loss is grossly higher than another one."""
    return measured - reference > _GROSS * abs(reference)


def describe_part(module: nn.Module, name: str) -> str:
    """Return how a part of a model is told of."""
    return f"`{name}` ({type(module).__name__})" if name else f"`{type(module).__name__}`"


def _is_torchs(module: nn.Module) -> bool:
    """Say whether a module is one of torch's, or made from one that works otherwise in training."""
    return type(module).__module__.startswith("torch.") or isinstance(module, _TWO_SIDED)


def _looks_at_its_mode(module: nn.Module) -> bool:
    """Say whether the code of a module of the user's names the mode, or acts on its change."""
    if _is_torchs(module):
        return False
    kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.")]
    values = [value for kind in kinds for value in vars(kind).items()]
    functions = [(name, value) for name, value in values if isinstance(value, FunctionType)]
    return any(name in ("train", "eval") or _names_mode(f.__code__) for name, f in functions)


def _names_mode(code: CodeType) -> bool:
    """Say whether a piece of code, or one inside of it, has the word for the mode."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return "training" in code.co_names or any(map(_names_mode, inner))


def _numbers_of(module: nn.Module) -> tuple[Any, ...]:
    """Return what stands for the numbers that a module itself holds."""
    own = *module.parameters(recurse=False), *module.buffers(recurse=False)
    held = [*own, *vars(module).values()]
    tensors = [value for value in held if isinstance(value, torch.Tensor)]
    floats = [value for value in held if isinstance(value, float)]
    return fingerprint(tensor.detach() for tensor in tensors), *floats


def _is_shown(target: torch.Tensor, given: torch.Tensor) -> bool:
    """Say whether a target is a part of what a model was given, or the same."""
    if storage_of(target) == storage_of(given):
        return True
    return target.numel() == given.numel() and torch.equal(
        target.detach().flatten().double(), given.detach().flatten().double()
    )


def _first_other(calls: Sequence[_Call], others: Sequence[_Call]) -> tuple[_Call, ...]:
    """Return the first two calls of a module that returned something else of the same inputs."""
    for one, other in zip(calls, others, strict=False):
        if one[0] != other[0]:
            return ()
        if one[1] == other[1] and one[2] != other[2]:
            return one, other
    return ()


def _is_struck(training: Numbers, evaluation: Numbers) -> bool:
    """Say whether numbers are zero in training, or the same: nothing makes up for the zeros."""
    if training.shape != evaluation.shape or not training.size:
        return False
    kept = training == evaluation
    struck = np.count_nonzero(~kept) / training.size
    least = min(struck, np.count_nonzero(kept & (training != 0)) / training.size)
    return bool((kept | (training == 0)).all() and least >= _STRUCK)
