"""The subject `Loss`: a function of tensors whose values and gradients are judged."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.budget import Budget
from trainguard.subjects.budget_checks import check_budgeted
from trainguard.subjects.domain import (
    BATCH,
    Domain,
    bounds_of,
    check_drawn,
    check_possible,
    tensors_of,
)
from trainguard.subjects.relation import Relation, check_relations
from trainguard.subjects.subject import (
    Subject,
    check_callable,
    check_word,
    is_strategy,
    mapping_of,
    parameters,
    required_names,
)

DTYPES = ("float64", "float32", "bfloat16", "float16")
LOW_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True, eq=False, init=False)
class Loss(Subject):
    """
    A loss function, an `nn.Module`, or with `vary` a factory of one.

    Every further keyword declares the input of that name: a domain, or a Hypothesis strategy for
    an argument that is no tensor. The dimension `B` is the batch. See `trainguard list` for what
    is judged, and the parameters below for what more can be promised.

    inputs: the same as a mapping, for inputs whose names are taken by parameters of `Loss`.
    vary: {hyperparameter: strategy}; `function` is then called with them and returns the loss.
    sizes: {dimension: size or (least, most)}; 1 to 4 where nothing is said.
    dtypes: the floating-point types of the inputs in which the loss is used.
    reduction: "none", "sum" or "mean" over the batch, where the loss is one per sample.
    components: the names of the parts, where a dict or a tuple of several is returned.
    total: the part that is minimised; without it, their sum.
    likelihood: the integer or binned input whose probabilities exp(-loss) must sum to one.
    relations: what must hold between a call and the same call with its inputs edited.
    budget: what the memory of one call, forward and backward, may come to.
    """

    family: ClassVar[str] = "loss"
    takes_inputs: ClassVar[bool] = True

    function: Callable[..., Any] = field(default=lambda: None)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32",)
    reduction: Literal["none", "sum", "mean"] | None = None
    components: tuple[str, ...] = ()
    total: str | None = None
    likelihood: str | None = None
    relations: tuple[Relation, ...] = ()
    budget: Budget | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        vary: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int | tuple[int, int]] | None = None,
        dtypes: Iterable[str] = ("float32",),
        reduction: Literal["none", "sum", "mean"] | None = None,
        components: Iterable[str] = (),
        total: str | None = None,
        likelihood: str | None = None,
        relations: Iterable[Relation] = (),
        budget: Budget | None = None,
        allow: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        timeout: float = 60.0,
        name: str = "",
        **domains: Any,
    ) -> None:
        """Declare a loss; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        own = {
            "function": function,
            "inputs": {**mapping_of("Loss", "inputs", inputs), **domains},
            "vary": mapping_of("Loss", "vary", vary),
            "sizes": dict(sizes or {}),
            "dtypes": (dtypes,) if isinstance(dtypes, str) else tuple(dtypes),
            "reduction": reduction,
            "components": (components,) if isinstance(components, str) else tuple(components),
            "total": total,
            "likelihood": likelihood,
            "relations": check_relations("Loss", relations),
            "budget": budget,
            "allow": mapping_of("Loss", "allow", allow),
            "limits": mapping_of("Loss", "limits", limits),
            "timeout": timeout,
            "name": name or getattr(function, "__name__", type(function).__name__),
        }
        for key, value in own.items():
            object.__setattr__(self, key, value)
        check_callable("Loss", function)
        if isinstance(function, type) and not vary:
            raise DeclarationError(
                f"tg.Loss got the class {function.__name__}. Pass one of it: {function.__name__}()."
            )
        for key, value in own.items():
            if isinstance(value, Domain) or is_strategy(value):
                raise DeclarationError(
                    f"tg.Loss(...) got an input for its own option {key!r}."
                    f" Write inputs={{{key!r}: ...}} for an input of that name."
                )
        _check_inputs(self, set(domains))
        _check_loss_promises(self)
        names = {name for domain in self.tensors.values() for name in domain.names}
        accepted = parameters(function) if vary else ()
        check_budgeted(self, {*names, *self.sizes}, self.vary, accepted)
        self.__post_init__()

    @property
    def tensors(self) -> dict[str, Domain]:
        """The inputs that are tensors, in order of declaration."""
        return tensors_of(self.inputs)

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        ranges = {
            f"magnitude:{name}": max(abs(domain.low), abs(domain.high))
            for name, domain in self.tensors.items()
            if not isinstance(domain.low, str) and not isinstance(domain.high, str)
        }
        return {**super().promises, **ranges}

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        made = {
            "reduction": self.reduction is not None,
            "components": len(self.components) > 1,
            "likelihood": self.likelihood is not None,
            "relations": bool(self.relations),
            "mask": any(domain.kind == "mask" for domain in self.tensors.values()),
        }
        return super().promise_names | {name for name, holds in made.items() if holds}


def _check_inputs(loss: Loss, keywords: set[str]) -> None:
    """Raise for keywords that are neither options nor inputs, and for inputs without a gradient."""
    options = set(inspect.signature(Loss.__init__).parameters) - {"self", "function", "domains"}
    accepted = None if loss.vary else parameters(loss.function)
    for name, domain in loss.inputs.items():
        if accepted is not None and name not in accepted:
            known = accepted | options if name in keywords else accepted
            raise DeclarationError(
                f"{loss.name} takes no input {name!r}, and tg.Loss has no such option."
                f"{did_you_mean(name, known)}"
            )
        check_drawn("Loss", name, domain, options if name in keywords else ())
    if not any(domain.grad for domain in loss.tensors.values()):
        raise DeclarationError(
            f"tg.Loss({loss.name}) declares no input with a gradient, so there is nothing to judge."
            " Declare at least one input as tg.real(...)."
        )
    for name in sorted(() if loss.vary else required_names(loss.function) - set(loss.inputs)):
        raise DeclarationError(
            f"{loss.name} needs an input {name!r}, which tg.Loss is not told of."
            f" Declare it: {name}=tg.real(...)."
        )


def _check_vary(loss: Loss) -> None:
    """Raise for hyperparameters that are not drawn."""
    for name, drawn in loss.vary.items():
        if not is_strategy(drawn):
            raise DeclarationError(
                f"tg.Loss(vary={{{name!r}: {drawn!r}}}) is no Hypothesis strategy."
                f" Write st.just({drawn!r}) to fix it."
            )


def _check_loss_promises(loss: Loss) -> None:
    """Raise for promises about dtypes, sizes, reductions, parts and bins that cannot be meant."""
    check_word("dtypes", loss.dtypes, DTYPES)
    if not loss.dtypes:
        raise DeclarationError(
            "tg.Loss(dtypes=()) names no dtype, so there is nothing to judge."
            " Leave it out for float32."
        )
    if loss.reduction is not None:
        check_word("reduction", [loss.reduction], ("none", "sum", "mean"))
    used = {name for domain in loss.tensors.values() for name in domain.names}
    check_word("sizes", loss.sizes, used)
    check_possible("Loss", loss.sizes)
    _check_vary(loss)
    check_word("the bound of an input", bounds_of(loss.tensors), used | set(loss.sizes))
    if loss.reduction is not None and BATCH not in used:
        raise DeclarationError(
            f"tg.Loss(reduction={loss.reduction!r}) promises something about the batch, and no"
            f" input has the dimension {BATCH!r}. Call the batch dimension {BATCH}."
        )
    if loss.likelihood is not None:
        check_word("likelihood", [loss.likelihood], loss.tensors)
        if loss.tensors[loss.likelihood].kind not in ("integer", "bins"):
            raise DeclarationError(
                f"tg.Loss(likelihood={loss.likelihood!r}) names an input whose values cannot be"
                " listed. Declare it as tg.integer(...) or tg.bins(...)."
            )
