"""A Budget says how much memory one training step may take, in all and of each category."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.units import parse_bytes, share

CATEGORIES = (
    "parameters", "gradients", "optimizer", "activations", "temporaries", "buffers", "inputs",
    "averages",
)  # fmt: skip
DEVICES = ("cuda", "cpu")
_AMOUNTS = ("peak", *CATEGORIES, "growth_per_step", "per_element")
_SHARES = ("saving", "headroom", "snapshot")
Amount = str | int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """
    What the memory of one training step may come to, predicted without a GPU or measured on one.

    Amounts are words ("23 GiB", "300 MB") or bytes; a KiB is 1024 bytes, a KB 1000.

    peak: of everything, at its highest moment.
    parameters ... averages: of one category, at its highest moment. `activations` are what the
        forward pass keeps for the backward pass, `optimizer` is its state, `averages` are averaged
        copies (EMA), `temporaries` what lives within a pass only.
    growth_per_step: how much more may be alive after each further step; nothing where not said.
    per_element: of a loss alone: the bytes of its peak, inputs apart, per element of its largest
        input.
    headroom: the share of the device's memory that must stay free; judged on CUDA only.
    saving: the share by which the peak is smaller with the model's `checkpoint` than without, or
        smaller than that of the subject `against`.
    powers: {dimension: power}, how memory may grow with a size: 1 in proportion, 2 with its square.
    snapshot: the share by which the peak may rise above the one kept as a snapshot.
    at: sizes of dimensions and arguments of the factory that the budget is about, where they are
        larger than those that everything else is judged at: {"B": 1, "T": 24576, "layers": 8}.
    using: what makes the optimizer from the parameters; `torch.optim.AdamW` where not said.
    averaged: what makes the averaged copy from the model, such as torch's `AveragedModel`.
    device: what a prediction is for: "cuda" rounds as its caching allocator does and lets the
        optimizer work on all parameters at once; "cpu" does neither.
    """

    peak: Amount | None = None
    parameters: Amount | None = None
    gradients: Amount | None = None
    optimizer: Amount | None = None
    activations: Amount | None = None
    temporaries: Amount | None = None
    buffers: Amount | None = None
    inputs: Amount | None = None
    averages: Amount | None = None
    growth_per_step: Amount | None = None
    per_element: Amount | None = None
    headroom: str | float | None = None
    saving: str | float | None = None
    against: Any = None
    powers: Mapping[str, float] = field(default_factory=dict)
    snapshot: str | float | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    using: Callable[..., Any] | None = None
    averaged: Callable[..., Any] | None = None
    device: str = "cuda"

    if not TYPE_CHECKING:  # type checkers see the generated __init__ and its keywords

        def __new__(cls, **options: Any) -> "Budget":
            """Refuse an unknown keyword with the nearest known one."""
            __tracebackhide__ = True
            for name in options:
                if name not in cls.__dataclass_fields__:
                    raise DeclarationError(
                        f"tg.Budget has no category or option {name!r}."
                        f"{did_you_mean(name, cls.__dataclass_fields__)}"
                    )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        """Bring all amounts into bytes; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, _check_option(name, getattr(self, name)))
        _check_budget(self)

    @property
    def categories(self) -> dict[str, int]:
        """The limits in bytes of the categories that have one."""
        limits = {name: getattr(self, name) for name in CATEGORIES}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def promise_names(self) -> frozenset[str]:
        """What is promised, by the names that invariants need."""
        names = ("peak", "per_element", "headroom", "saving", "snapshot")
        made = {name for name in names if getattr(self, name) is not None}
        return frozenset(
            made
            | ({"category"} if self.categories else set())
            | ({"powers"} if self.powers else set())
        )

    @property
    def promises(self) -> dict[str, Plain]:
        """The limits as plain values, in bytes and shares, for the header of a trace."""
        names = (*_AMOUNTS, *_SHARES, "device")
        told = {f"budget:{name}": getattr(self, name) for name in names}
        told["budget:sized"] = True if self.at else None
        powers = {f"power:{name}": float(power) for name, power in self.powers.items()}
        return {**{name: value for name, value in told.items() if value is not None}, **powers}


def _check_option(name: str, value: Any) -> Any:
    """Return one option in plain units; raises where it cannot be meant."""
    if value is None:
        return None
    if name in _AMOUNTS:
        return parse_bytes(f"tg.Budget: {name}", value, 0 if name == "growth_per_step" else 1)
    if name in _SHARES:
        return share(f"tg.Budget: {name}", value)
    if name in ("powers", "at") and not isinstance(value, Mapping):
        raise DeclarationError(f"tg.Budget({name}={value!r}) is no mapping. Write {{'T': 1}}.")
    if name in ("using", "averaged") and not callable(value):
        raise DeclarationError(f"tg.Budget({name}={value!r}) cannot be called. Give a function.")
    return dict(value) if name in ("powers", "at") else value


def _check_budget(budget: Budget) -> None:
    """Raise for options that cannot be meant together."""
    if budget.device not in DEVICES:
        raise DeclarationError(
            f"tg.Budget(device={budget.device!r}) cannot be predicted."
            f"{did_you_mean(budget.device, DEVICES)}"
        )
    for name, power in budget.powers.items():
        if isinstance(power, bool) or not isinstance(power, int | float) or power < 0:
            raise DeclarationError(
                f"tg.Budget(powers={{{name!r}: {power!r}}}) is no power."
                " Write 1 for in proportion, 2 for the square."
            )
    if budget.against is not None and budget.saving is None:
        raise DeclarationError(
            "tg.Budget(against=...) promises no saving. Say how much: saving='30 %'."
        )
