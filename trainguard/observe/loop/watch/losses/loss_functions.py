"""
Watches the loss functions of `torch.nn.functional`: from where they are called, and with what.

The modules `nn.*Loss` call them, so that they are seen too. Losses written by hand are known where
they go backward, if they are nothing but a distance, or logarithms of classes that are picked.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn import functional

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.bounded_parts import beside_constant
from trainguard.observe.loop.watch.losses.loss_calls import (
    DISTANCES,
    EXPANDS,
    LossCalls,
    Token,
    is_broadcast,
)
from trainguard.observe.loop.watch.losses.written_losses import keep_outputs, read_loss
from trainguard.observe.loop.watch.models.forwards import Forwards
from trainguard.observe.loop.watch.models.function_lines import ACTIVATIONS, find_last_line
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.patches import Patches, graphless
from trainguard.observe.tools.redirection import can_be_redirected
from trainguard.observe.tools.user_line import user_frame

Listener = Callable[[LossCalls, torch.Tensor, torch.Tensor, torch.Tensor], None]
FUNCTIONS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "linear_cross_entropy",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)
_RELU = "ReluBackward0"
_TARGETS = ("target", "targets", "positive")
_MEANS = ("mean", "batchmean")
_DEPRECATED = ("size_average", "reduce")
_MOST_PLACES = 256
_PASSES = 2  # after the first of which a model is known that calls its loss itself
# What takes logits or logarithms, before which an activation is a mistake.
_UNBOUNDED = {"binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "nll_loss"}
_KEPT = 2**16  # elements of an option that is copied, such as the weights of classes
_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # noqa: SLF001
_functorch: Any = torch._C._functorch  # noqa: SLF001 no other way to ask


@dataclass(frozen=True, slots=True)
class _Function:
    """A loss function: its name, and how its arguments are called and ordered."""

    name: str
    first: str
    second: str
    place: int  # of the second one
    signature: inspect.Signature

    def reduction(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return by what name a call reduces, the deprecated flags included."""
        given = self.signature.bind(*args, **kwargs).arguments
        size_average, reduce = given.get("size_average"), given.get("reduce")
        if size_average is None and reduce is None:
            return str(given.get("reduction", "mean"))
        return "none" if reduce is False else "sum" if size_average is False else "mean"


class LossFunctions(Watcher):
    """
    The column weights, and the Term events.

    fresh: the calls with a graph since the last backward.
    only: where the latest loss that was handed to backward comes from, if from one place alone.
    listeners: are told of each call, with its input, target and value; no graph is built there.
    """

    makes = ("weights", "Term")
    relies_on = ("Scaling", "Losses", "MadeLines")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.fresh: set[Token] = set()
        self.only: LossCalls | None = None
        self.listeners: list[Listener] = []
        self._tallies: dict[tuple[Any, ...], LossCalls] = {}
        self._weights: dict[int, list[tuple[Token, Any] | None]] = {}
        self._weight: tuple[Token, Any] | None = None
        self._backwards = 0
        self._inside = threading.local()

    def install(self, patches: Patches) -> None:
        """Listen to every loss function, by whatever name the user's modules know it."""
        self._forwards = self.recorder.watcher(Forwards)
        originals = {n: f for n in FUNCTIONS if (f := getattr(functional, n, None)) is not None}
        # Others may hold a loss, compare it, or pickle a model that has it: it stays what it is.
        for name in [name for name, loss in originals.items() if can_be_redirected(loss)]:
            patches.redirect(originals.pop(name), partial(self._wrap, name))
        watched = {id(f): self._wrap(n, f) for n, f in originals.items()}
        for name in originals:
            patches.replace(functional, name, lambda original: watched[id(original)])
        for module, name in _bound_early(set(watched)):
            patches.replace(module, name, lambda original: watched[id(original)])

    @property
    def measured_by(self) -> frozenset[str]:
        """The loss functions that were called where nothing is learned."""
        return frozenset(name for name, learns, *_ in self._tallies if not learns)

    def before_backward(self, loss: torch.Tensor) -> None:
        """See which loss function the loss is a multiple of, with its graph still there."""
        for window in self.recorder.windows:
            del self._weights.setdefault(id(window), [])[len(window.losses) :]
        self._weight = None
        if loss.grad_fn is not None and not self.fresh:
            self._inside.busy = True  # listeners call loss functions, which are not the user's
            try:
                with suppress(Exception):  # what was changed since, or used up, cannot be read
                    self._look_for_written(loss)
            finally:
                self._inside.busy = False
        try:
            found = autograd_graph.multiple(loss)
        except Exception:  # noqa: BLE001 a constant that was changed since cannot be read
            found = None
        upward = found is not None and isinstance(found[1], float) and found[1] < 0
        self.only = None if found is None or upward else found[0][0]
        if found is not None and found[0][0].reduction in _MEANS:
            self._weight = found[0], found[1] / self.recorder.scaling.of(loss)
        elif found is None:
            self._weight = _mean_by_hand(loss)

    def forward(self, forward: Forward, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what a pass returns for the losses that are written by hand."""
        if forward.gradients:
            keep_outputs(output, (forward.module, forward.clock))

    def _look_for_written(self, loss: torch.Tensor) -> None:
        """Take a loss that is written by hand for a call of the function that it is."""
        found = read_loss(loss)
        user = user_frame(sys._getframe(1))  # noqa: SLF001
        if found is None or user is None:
            return
        key = (f"{found.function} by hand", True, id(user.f_code), user.f_lineno)
        tally = self._tallies.get(key)
        if tally is None and len(self._tallies) < _MOST_PLACES:
            tally = self._open(
                key,
                user,
                function=found.function,
                evaluation=False,
                reduction=found.reduction,
                input=tuple(found.scores.shape),
                target=tuple(found.target.shape),
                options={"reduction": found.reduction},
            )
        if tally is not None:
            self._add(tally, found.scores, found.target, found.value, found.node)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Give the multiple to the optimizers that the loss was given to."""
        self.fresh.clear()
        self._backwards += 1
        for window in self.recorder.windows:
            weights = self._weights.setdefault(id(window), [])
            if len(window.losses) == len(weights) + 1:
                weights.append(self._weight)

    def before_step(self, window: Window) -> Columns:
        """Return the multiples, where all losses of the window come from one and the same place."""
        weights = self._weights.get(id(window), [])[: len(window.losses)]
        known = [weight for weight in weights if weight is not None]
        window.see_edits()
        if window.edited:  # what the gradients are worth now is another multiple
            return {}
        if not known or len(known) != len(window.losses) or len({t for (t, _), _ in known}) > 1:
            return {}
        return {"weights": tuple(factor for _, factor in known)}

    def finish(self) -> Iterable[Event]:
        """Return what was added up of each place."""
        for tally in self._tallies.values():
            yield from tally.terms()

    def _wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loss function that tells of its calls and returns what the original does."""
        function = _describe(name, original)
        inside, looking = self._inside, self.recorder.is_looking
        compiling, modes = torch.compiler.is_compiling, _dispatch_modes

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Compute the loss, and note the call unless it is part of another one's."""
            if compiling() or not looking() or modes() or getattr(inside, "busy", False):
                return original(*args, **kwargs)
            inside.busy = True
            try:
                value = original(*args, **kwargs)
                self._note(function, sys._getframe(1), args, kwargs, value)  # noqa: SLF001
            finally:
                inside.busy = False
            return value

        # As `torch.jit.script_if_tracing` does it: scripting and compiling take the original.
        for key, known in (("__original_fn", original), ("__script_if_tracing_wrapper", True)):
            setattr(wrapper, key, known)
        return wrapper

    @shielded
    def _note(
        self,
        function: _Function,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
    ) -> None:
        """Add a call to the tally of its place."""
        try:
            learns = torch.is_grad_enabled()
            user = user_frame(frame)
            place = (id(user.f_code), user.f_lineno) if user is not None else (0, 0)
            key = (function.name, learns, *place)
            tally = self._tallies.get(key) or self._begin(key, function, user, args, kwargs)
            if tally is None or value.is_meta or _tracing():
                return
            scores = args[0] if args else kwargs[function.first]
            second = function.place
            target = args[second] if len(args) > second else kwargs[function.second]
            if function.name == "ctc_loss":
                lengths = args[2] if len(args) > 2 else kwargs["input_lengths"]
                wanted = args[3] if len(args) > 3 else kwargs["target_lengths"]
                tally.see_lengths(scores.shape[0], lengths, wanted)
            self._add(tally, scores, target, value)
        except Exception:  # noqa: BLE001 what is noted of a loss must not fail the training
            return

    def _begin(
        self,
        key: tuple[Any, ...],
        function: _Function,
        user: FrameType | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> LossCalls | None:
        """Begin the tally of a place; there are only so many places."""
        if len(self._tallies) >= _MOST_PLACES:
            return None
        given = function.signature.bind(*args, **kwargs).arguments
        reduction = function.reduction(args, kwargs)
        if not given.keys().isdisjoint(_DEPRECATED):  # torch warns of them at each call
            given["reduction"] = reduction
        return self._open(
            key,
            user,
            function=function.name,
            evaluation=not torch.is_grad_enabled(),
            reduction=reduction,
            input=tuple(given[function.first].shape),
            target=tuple(given[function.second].shape),
            options=_keep_options(given, {function.first, function.second, *_DEPRECATED}),
        )

    def _open(self, key: tuple[Any, ...], user: FrameType | None, **known: Any) -> LossCalls:
        """Open the tally of a place."""
        source = f"{user.f_code.co_filename}:{user.f_lineno}" if user is not None else ""
        code = user.f_code if user is not None else None
        self._tallies[key] = LossCalls(source=source, code=code, **known)
        return self._tallies[key]

    def _add(
        self,
        tally: LossCalls,
        scores: torch.Tensor,
        target: Any,
        value: torch.Tensor,
        node: autograd_graph.Node = None,
    ) -> None:
        """
        Count a call, leave its mark in the graph, and look at its values now and then.

        node: that which made the value, where another one is a multiple of it.
        """
        tally.calls += 1
        if is_batched(value):  # inside of vmap nothing can be kept, and there is no value to read
            return
        if value.requires_grad:
            token = tally.token(self._backwards)
            self.fresh.add(token)
            autograd_graph.mark(node or value.grad_fn, token)
            name = (
                autograd_graph.activation if tally.is_given_logarithms else autograd_graph.producer
            )
            tally.producer = tally.producer or _name_bounded(tally, scores) or name(scores)
            if tally.calls == 1:
                tally.viewed = autograd_graph.shape_before_view(scores)
            if tally.calls <= _PASSES and tally.function in _UNBOUNDED and not tally.activation:
                word = ACTIVATIONS.get(tally.producer, "")
                tally.activation = find_last_line(self.recorder, word) if word else ""
        if value.numel() and value.is_floating_point():
            self._forwards.add_loss(value, tally.reduction)
            tally.add_value(value)
        if scores.shape != target.shape and tally.function in EXPANDS:
            tally.broadcasts += is_broadcast(scores.shape, target.shape)
        told = tuple(self.listeners), tally, scores, target, value
        graphless(self.recorder.faults.tell, *told)
        windows = self.recorder.going or self.recorder.windows
        surveyed = windows[-1].is_surveyed if windows else True
        if tally.wants(self.recorder.steps, surveyed) and not _capturing(scores):
            tally.check(scores, target)


def _name_bounded(tally: LossCalls, scores: torch.Tensor) -> str:
    """Name a ReLU that a constant was added to, before a distance; else nothing."""
    # A sigmoid or a tanh beside a constant is a step of a size that may be meant.
    part = beside_constant(scores) if tally.function in DISTANCES else None
    name = "" if part is None else autograd_graph.name_of(part[0])
    return f"constant {'-+'[part[1] > 0]} {name}" if part is not None and name == _RELU else ""


def _mean_by_hand(loss: torch.Tensor) -> tuple[Token, float] | None:
    """Return which call returned a number for each sample, where a loss is their plain mean."""
    try:
        token: Token | None = autograd_graph.mean_of_several(loss)
    except Exception:  # noqa: BLE001 a constant that was changed since cannot be read
        return None
    return (token, 1.0) if token is not None and token[0].reduction == "none" else None


def _describe(name: str, original: Callable[..., Any]) -> _Function:
    """Return how the arguments of a loss function are called."""
    signature = inspect.signature(original)
    names = list(signature.parameters)
    second = next(n for n in names if n in _TARGETS)
    return _Function(name, names[0], second, names.index(second), signature)


def _keep_options(given: dict[str, Any], but: set[str]) -> dict[str, Any] | None:
    """Return the arguments of a call but some, its tensors copied; None if one is too large."""
    options = {name: value for name, value in given.items() if name not in but}
    for name, value in options.items():
        if isinstance(value, torch.Tensor):
            if value.numel() > _KEPT:
                return None
            options[name] = value.detach().clone()
    return options


def _bound_early(originals: set[int]) -> Iterator[tuple[ModuleType, str]]:
    """Yield where modules other than torch's hold a function, by `from ... import` of it."""
    for module in list(sys.modules.values()):
        name = vars(module).get("__name__", "") if type(module) is ModuleType else ""
        if not isinstance(name, str) or name.partition(".")[0] in ("torch", "trainguard", ""):
            continue
        if not originals.isdisjoint(map(id, vars(module).values())):  # in C: there are thousands
            held = [key for key, value in vars(module).items() if id(value) in originals]
            yield from ((module, key) for key in held)


def _capturing(tensor: torch.Tensor) -> bool:
    """Say whether what is done with a tensor now goes into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_batched(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is one of those inside of vmap, at whichever level."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False
