"""Watches policy gradients: whether the weight of a log-probability learns from being one."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import getsourcelines
from types import FrameType
from typing import Any

import torch
from torch import distributions

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import SumPart
from trainguard.observe.loop.watch.gradients.autograd_graph import SAME, Node, kind_of, live_inputs
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, user_frames, variables_of

_STEPS = {0, 1, 2, 4, 8, 16, 32}  # that are looked at
_MOST_NODES = 20000
_MOST_OPERANDS = 2000  # that a weight, or an error, is made of
_FRAMES = 3  # of the user's code in which a name is looked for
LOG_PROBABILITY = "trainguard: log-probability"
_PARTS = {
    "CatBackward",
    "FlipBackward",
    "IndexBackward",
    "MeanBackward",
    "SelectBackward",
    "SliceBackward",
    "StackBackward",
    "StdBackward",
    "SumBackward",
    "UnbindBackward",
    "VarBackward",
}
_LINEAR = {"AddBackward", "DivBackward", "NegBackward", "RsubBackward", "SubBackward"}
_SAME_SIGN = {"ClampBackward", "ExpBackward"}  # a ratio of probabilities
_LOGARITHMS = {"LogSoftmaxBackward", "LogBackward", "LogsumexpBackward"}
_ERRORS = {
    "AbsBackward",
    "HuberLossBackward",
    "MseLossBackward",
    "PowBackward",
    "SmoothL1LossBackward",
}


class PolicyWeights(Watcher):
    """
    The Probe event "weight": losses in which the weight of a log-probability gets a gradient.

    Only of weights that an error in the same loss fits as well, as it fits the values of a critic.
    drawn_at: how many steps there were when actions, or anything else, were last drawn by chance.
    listeners: are told of each log_prob: the distribution, what it was asked of, and the result.
    """

    makes = ("Probe:weight",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.drawn_at: int | None = None
        self.listeners: list[Callable[[Any, tuple[Any, ...], Any], None]] = []
        self._seen = self._found = 0
        self._name = self._source = ""

    def install(self, patches: Patches) -> None:
        """Recognise what distributions return for numbers without gradients."""
        for kind in vars(distributions).values():
            if isinstance(kind, type) and "log_prob" in vars(kind):
                patches.replace(kind, "log_prob", self._marking)
            if isinstance(kind, type) and "sample" in vars(kind):
                patches.replace(kind, "sample", self._drawing)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for weighted log-probabilities in the graph of a loss."""
        if self.drawn_at is None or self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES or not any(map(is_log_probability, nodes)):
            return
        self.looked.add("weight")
        self._seen += 1
        weights = [weight for node in nodes if (weight := _weight_in(node)) is not None]
        if not weights:
            return
        fitted = {id(origin) for node in nodes for origin in _fitted_by(node)}
        both = [weight for weight in weights if any(id(o) in fitted for o in _origins(weight))]
        self._found += bool(both)
        if both and not self._source:
            self._name, self._source = _name_of(both[0]) or ("", caller())

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._found:
            yield make_probe(
                "weight", self._found, self._seen, label=self._name, source=self._source
            )

    def _marking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `log_prob` that leaves a mark at what it returns."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Do what the original does."""
            result = original(*args, **kwargs)
            if not compiling() and self.recorder.patches.live:
                self._leave_mark(args[0], (*args, *kwargs.values())[1:], result)
            return result

        return wrapper

    def _drawing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that draws samples, after which log-probabilities are looked at."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Do what the original does."""
            if not compiling():
                self.drawn_at = self.recorder.steps
            return original(*args, **kwargs)

        return wrapper

    @shielded
    def _leave_mark(self, policy: Any, given: tuple[Any, ...], result: Any) -> None:
        """Mark the log-probabilities of what is given, as of an action that was taken."""
        for listener in self.listeners:
            listener(policy, given, result)
        constant = not any(isinstance(v, torch.Tensor) and v.requires_grad for v in given)
        node: Node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if constant and node is not None:
            node.metadata[LOG_PROBABILITY] = True


def is_log_probability(node: Node) -> bool:
    """Say whether a node returns the log-probability of a choice that was made."""
    if LOG_PROBABILITY in node.metadata:
        return True
    if kind_of(node) not in ("GatherBackward", "IndexBackward"):
        return False
    for before in live_inputs(node):
        parts = [before, *(live_inputs(before) if kind_of(before) == "SubBackward" else [])]
        if any(kind_of(part) in _LOGARITHMS for part in parts):
            return True
    return False


def find_steps(parts: Iterable[SumPart]) -> list[SumPart]:
    """Return the parts of a sum that are log-probabilities, in the order of their sum."""
    steps = [part for part in parts if any(map(is_log_probability, parts_of_sum(part.node)))]
    return steps[::-1]  # the last one that was added up is found first


def _weight_in(node: Node) -> Node | None:
    """Return what a product multiplies a log-probability by, where that learns and is none."""
    operands = live_inputs(node) if kind_of(node) == "MulBackward" else []
    if len(operands) != 2:
        return None
    chosen = [any(map(is_log_probability, parts_of_sum(o, _SAME_SIGN))) for o in operands]
    return operands[chosen.index(False)] if sum(chosen) == 1 else None


def parts_of_sum(root: Node, more: Iterable[str] = ()) -> Iterator[Node]:
    """Yield a node and what it is a sum of, up to constant factors and to what is no sum."""
    through = {*SAME, *_PARTS, *_LINEAR, *more}
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MOST_OPERANDS:
        node = waiting.pop()
        yield node
        live = live_inputs(node)
        scaled = kind_of(node) == "MulBackward" and len(live) == 1
        if (kind_of(node) in through or scaled) and LOG_PROBABILITY not in node.metadata:
            fresh = [before for before in live if before not in seen]
            seen.update(fresh)
            waiting += fresh


def _origins(node: Node) -> list[Node]:
    """Return what a weight comes from at last: heads of models."""
    through = {*SAME, *_PARTS, *_LINEAR}
    return [
        part for part in parts_of_sum(node) if kind_of(part) not in through and live_inputs(part)
    ]


def _fitted_by(node: Node) -> list[Node]:
    """Return what an error fits to its targets."""
    roots = live_inputs(node) if kind_of(node) in _ERRORS else []
    return [origin for before in roots for origin in _origins(before)]


def _name_of(node: Node) -> tuple[str, str] | None:
    """Return the user's name for what a node returned, and the line that gives it that name."""
    for frame in user_frames(_FRAMES):
        for name, value in variables_of(frame).items():
            if type(value) is torch.Tensor and value.grad_fn is node:
                return name, _assignment(frame, name)
    return None


def _assignment(frame: FrameType, name: str) -> str:
    """Return the last line of a function, up to the one that runs, that assigns to a name."""
    code, line = frame.f_code, frame.f_lineno
    try:
        lines, first = getsourcelines(code)
    except (OSError, TypeError):
        lines, first = [], 1
    pattern = re.compile(rf"\s*{re.escape(name)}\s*=[^=]")
    found = [n for n, text in enumerate(lines, max(1, first)) if pattern.match(text) and n <= line]
    return f"{code.co_filename}:{found[-1] if found else line}"
