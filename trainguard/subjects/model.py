"""The subject `Model`: a module, or a factory of one, that is judged before it is trained."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any, ClassVar

from trainguard.core.errors import DeclarationError
from trainguard.events.base import Plain
from trainguard.subjects.budget import Budget
from trainguard.subjects.budget_checks import check_budgeted
from trainguard.subjects.domain import BATCH, Domain, check_sizes, tensors_of
from trainguard.subjects.loss import DTYPES
from trainguard.subjects.model_inputs import check_factory, check_inputs
from trainguard.subjects.relation import Relation, check_relations
from trainguard.subjects.subject import (
    Subject,
    check_callable,
    check_word,
    is_strategy,
    mapping_of,
    parameters,
)

Range = tuple[float, float]
Components = Mapping[str, int | None]


@dataclass(frozen=True, eq=False, init=False)
class Model(Subject):
    """
    An `nn.Module`, or a factory of one: a class or a function that builds it.

    Every further keyword declares the input of that name: a domain, or a Hypothesis strategy for
    an input that is no tensor. What `forward` does not take is given to the loss. The dimension
    `B` is the batch. Nothing but the inputs needs to be said; what follows are promises.

    inputs: the same as a mapping, for inputs whose names are taken by options of `Model`.
    sizes: {dimension: size or (least, most)}; 4 for the batch and 2 to 8 where nothing is said.
    arguments, vary: what the factory is called with: values, and strategies to draw from.
    loss: `loss(output, **inputs)`, called with those of the declared inputs that it takes.
    initial_loss, classes: the loss before training; `classes=65` promises ln(65).
    initial_range: (low, high) of all outputs before training, or {output: (low, high)}.
    causal: the dimension along which an output depends on no later input.
    padding: the input that marks padding, a mask or the lengths of the samples; what is padded
        influences nothing that is not.
    longer: {dimension: size}, larger than those trained with, that must work too.
    checkpoint: `checkpoint(model)` switches activation checkpointing on.
    frozen, unused: globs of parameters that are not trained, or get no gradient, on purpose.
    components: outputs whose last dimension (or {name: dimension}) are parts of a mixture, or
        parameters whose rows are; no two of them may be the same.
    dtypes: where "bfloat16" or "float16" is among them, the model is used under autocast.
    compiled: whether `torch.compile` is used on it.
    relations: what must hold between a call and the same call with its inputs edited.
    budget: what the memory of one training step may come to.
    """

    family: ClassVar[str] = "model"
    takes_inputs: ClassVar[bool] = True

    model: Any = field(default=None)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    initial_loss: float | None = None
    classes: int | None = None
    initial_range: Range | Mapping[str, Range] | None = None
    causal: str | None = None
    padding: str | None = None
    longer: Mapping[str, int] = field(default_factory=dict)
    checkpoint: Callable[..., Any] | None = None
    frozen: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    components: Components = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32",)
    compiled: bool = False
    relations: tuple[Relation, ...] = ()
    budget: Budget | None = None

    def __init__(
        self,
        model: Any,
        *,
        inputs: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int | tuple[int, int]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        vary: Mapping[str, Any] | None = None,
        loss: Callable[..., Any] | None = None,
        initial_loss: float | None = None,
        classes: int | None = None,
        initial_range: Range | Mapping[str, Range] | None = None,
        causal: str | None = None,
        padding: str | None = None,
        longer: Mapping[str, int] | None = None,
        checkpoint: Callable[..., Any] | None = None,
        frozen: str | Iterable[str] = (),
        unused: str | Iterable[str] = (),
        components: str | Iterable[str] | Components = (),
        dtypes: str | Iterable[str] = ("float32",),
        compiled: bool = False,
        relations: Iterable[Relation] = (),
        budget: Budget | None = None,
        allow: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        timeout: float = 60.0,
        name: str = "",
        **domains: Any,
    ) -> None:
        """Declare a model; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        own = {
            "model": model,
            "inputs": {**mapping_of("Model", "inputs", inputs), **domains},
            "sizes": dict(sizes or {}),
            "arguments": dict(arguments or {}),
            "vary": mapping_of("Model", "vary", vary),
            "loss": loss,
            "initial_loss": initial_loss,
            "classes": classes,
            "initial_range": initial_range,
            "causal": causal,
            "padding": padding,
            "longer": dict(longer or {}),
            "checkpoint": checkpoint,
            "frozen": _words(frozen),
            "unused": _words(unused),
            "components": _components(components),
            "dtypes": _words(dtypes),
            "compiled": compiled,
            "relations": check_relations("Model", relations),
            "budget": budget,
            "allow": mapping_of("Model", "allow", allow),
            "limits": mapping_of("Model", "limits", limits),
            "timeout": timeout,
            "name": name or getattr(model, "__name__", type(model).__name__),
        }
        for key, value in own.items():
            object.__setattr__(self, key, value)
        check_callable("Model", model)
        _check_options(own)
        options = set(inspect.signature(Model.__init__).parameters) - {"self", "model", "domains"}
        check_inputs(self, set(domains), options)
        check_factory(self.model, self.name, self.is_module, self.arguments, self.vary)
        check_sizes(self)
        _check_promises(self)
        names = {name for domain in self.tensors.values() for name in domain.names}
        accepted = () if self.is_module else parameters(model)
        check_budgeted(self, {*names, *self.sizes}, self.arguments, accepted)
        self.__post_init__()

    @property
    def is_module(self) -> bool:
        """Whether a module itself is declared, and not a factory of one."""
        return not inspect.isclass(self.model) and hasattr(self.model, "named_parameters")

    @property
    def tensors(self) -> dict[str, Domain]:
        """The inputs that are tensors, in order of declaration."""
        return tensors_of(self.inputs)

    @property
    def expected_loss(self) -> float | None:
        """The promised loss before training: as declared, or the logarithm of the classes."""
        return log(self.classes) if self.classes is not None else self.initial_loss

    @property
    def ranges(self) -> dict[str, Range]:
        """The promised ranges of outputs before training, by their names or globs."""
        if self.initial_range is None:
            return {}
        both = self.initial_range
        return dict(both) if isinstance(both, Mapping) else {"*": both}

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        made = {
            "loss": self.loss is not None,
            "initial_loss": self.expected_loss is not None,
            "initial_range": self.initial_range is not None,
            "causal": self.causal is not None,
            "padding": self.padding is not None,
            "longer": bool(self.longer),
            "checkpoint": self.checkpoint is not None,
            "components": bool(self.components),
            "compiled": self.compiled,
            "relations": bool(self.relations),
            "batch": any(BATCH in domain.names for domain in self.tensors.values()),
        }
        return super().promise_names | {name for name, holds in made.items() if holds}

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        told: dict[str, Plain] = {
            "initial_loss": self.expected_loss,
            "classes": self.classes,
            "causal": self.causal,
            "padding": self.padding,
            "frozen": self.frozen,
            "unused": self.unused,
            "components": tuple(self.components),
        }
        bounds = {f"range:{name}": (low, high) for name, (low, high) in self.ranges.items()}
        return {**super().promises, **told, **bounds}


def _check_options(own: Mapping[str, Any]) -> None:
    """Raise for an input that has the name of an option, and for options of the wrong kind."""
    for key, value in own.items():
        if isinstance(value, Domain) or is_strategy(value):
            raise DeclarationError(
                f"tg.Model(...) got an input for its own option {key!r}."
                f" Write inputs={{{key!r}: ...}} for an input of that name."
            )
    for key in ("loss", "checkpoint"):
        if own[key] is not None and not callable(own[key]):
            raise DeclarationError(
                f"tg.Model({key}={own[key]!r}) cannot be called. Give a function."
            )
    for key in ("frozen", "unused"):
        if not all(isinstance(glob, str) and glob for glob in own[key]):
            raise DeclarationError(
                f"tg.Model({key}={own[key]!r}) is no list of globs. Write {key}=('encoder.*',)."
            )


def _check_promises(model: Model) -> None:
    """Raise for promises that cannot be meant."""
    check_word("dtypes", model.dtypes, DTYPES)
    if not model.dtypes:
        raise DeclarationError("tg.Model(dtypes=()) names no dtype. Leave it out for float32.")
    if model.causal is not None:
        used = {name for domain in model.tensors.values() for name in domain.names}
        check_word("causal", [model.causal], used)
    if model.padding is not None:
        check_word("padding", [model.padding], model.inputs)
    _check_initial(model)
    for bounds in model.ranges.values():
        if not (isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] < bounds[1]):
            raise DeclarationError(
                f"tg.Model(initial_range={model.initial_range!r}) is no range."
                " Give (low, high), or {output: (low, high)}."
            )
    for name, axis in model.components.items():
        if not isinstance(name, str) or not (axis is None or isinstance(axis, int)):
            raise DeclarationError(
                f"tg.Model(components=...) has {name!r}: {axis!r}."
                " Give names of outputs or parameters, or {name: dimension}."
            )


def _check_initial(model: Model) -> None:
    """Raise for promises about the loss before training that cannot be meant."""
    if model.classes is not None and model.initial_loss is not None:
        raise DeclarationError(
            f"tg.Model(classes={model.classes}, initial_loss={model.initial_loss}) promises the"
            " loss before training twice. Keep one of them."
        )
    if model.classes is not None and not (isinstance(model.classes, int) and model.classes > 1):
        raise DeclarationError(
            f"tg.Model(classes={model.classes!r}) cannot be. Give a whole number above one."
        )
    value = model.initial_loss
    if value is not None and not (isinstance(value, int | float) and isfinite(value)):
        raise DeclarationError(f"tg.Model(initial_loss={value!r}) cannot be. Give a number.")


def _words(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return a tuple of words; a single string is one of them."""
    return (value,) if isinstance(value, str) else tuple(value)


def _components(value: str | Iterable[str] | Components) -> dict[str, int | None]:
    """Return {name: dimension} of the components; None where the dimension is the usual one."""
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(_words(value))
