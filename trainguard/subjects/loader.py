"""The subject `Loader`: where the batches of a training, its validation and its test come from."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.domain import Domain
from trainguard.subjects.subject import Subject, check_word, is_strategy, parameters, required_names

# What can be said of one split, each with what may be said.
OPTIONS = ("chunk", "batch", "samples", "shuffled", "last", "once")
SPLITS = ("split", "subset", "partition", "stage", "mode", "phase")  # parameters that name a split
RANKS = ("rank", "local_rank", "global_rank", "process_index", "shard_id", "shard_index")
WORLDS = ("world", "world_size", "num_replicas", "num_processes", "num_shards", "ranks")
METHODS = {  # of a Lightning DataModule, or of anything shaped like one
    "train": "train_dataloader",
    "val": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Loader(Subject):
    """
    Loaders of batches: one, {split: one}, a function that makes them, or a data module.

    A loader is any iterable of batches; a data module has `train_dataloader()` and the like. A
    function with a parameter `split` is called for each split; a tuple that it returns is in the
    order of `splits`. What is not promised is found out, or not judged.

    arguments: fixed values for the parameters of the factory.
    vary: {parameter: strategy}, drawn by Hypothesis.
    splits: {split: what it promises}: chunk=the length of its sequences, batch=its samples,
        samples=those of an epoch, before a last batch is dropped,
        shuffled=whether each epoch has another order, last="short" or "dropped",
        once=whether an epoch visits each sample once. Names alone where nothing is promised.
    fields: {field: domain}: a name ("audio"), a position (0) or a path ("inputs.frames"). `B` is
        the batch and `T` the sequence; what lies outside the range is found.
    inputs, labels, modalities: the fields that are these.
    mask: the field that marks padding; declare it in `fields` as tg.mask(...) to say which value.
    chunks: "stream" where batch k+1 goes on with the sequences of batch k, row by row.
    reset: the field that says, for each row or each batch, that its sequence begins anew.
    ranks: the numbers of processes to share the data between; the factory takes rank and world.
    set_epoch: whether the training calls set_epoch(epoch) where a sampler or dataset has it.
    transform, inverse: two functions that undo each other, tried on `values`.
    tolerance: how far a value may be from itself after the round trip.
    resume: True where the loader has state_dict and load_state_dict, or (save, load), called as
        `state = save(loader)` and `load(loader, state)`.
    reproducible: False where the same seed is not meant to give the same batches.
    batches: at most so many of each epoch are looked at; without it all, and 500 of a loader that
        tells no length. A slow epoch is cut too, at a share of `timeout`.
    """

    family: ClassVar[str] = "loader"

    build: Any = field(kw_only=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, Any]] | Iterable[str] = field(default_factory=dict)
    fields: Mapping[str | int, Domain] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    mask: str | int | None = None
    modalities: tuple[str, ...] = ()
    chunks: Literal["stream"] | None = None
    reset: str | int | None = None
    ranks: tuple[int, ...] = ()
    set_epoch: bool = True
    transform: Callable[..., Any] | None = None
    inverse: Callable[..., Any] | None = None
    values: Domain | None = None
    tolerance: float | None = None
    resume: bool | tuple[Callable[..., Any], Callable[..., Any]] = False
    reproducible: bool = True
    batches: int | None = None
    timeout: float = 120.0

    def __post_init__(self) -> None:
        """Declare loaders; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        name = self.name or getattr(self.build, "__name__", type(self.build).__name__)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "splits", _splits(self.splits))
        object.__setattr__(self, "fields", {str(k): v for k, v in self.fields.items()})
        for option in ("inputs", "labels", "modalities"):
            object.__setattr__(self, option, _names(getattr(self, option)))
        for option in ("mask", "reset"):
            value = getattr(self, option)
            object.__setattr__(self, option, None if value is None else str(value))
        object.__setattr__(self, "ranks", tuple(self.ranks))
        check_loader(self)
        super().__post_init__()

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        """What is promised of each declared split."""
        assert isinstance(self.splits, Mapping)
        return self.splits

    @property
    def is_factory(self) -> bool:
        """Whether what was given is called to get the loaders."""
        return not isinstance(self.build, Mapping) and not _iterable(self.build) and not any(
            callable(getattr(self.build, method, None)) and not isinstance(self.build, type)
            for method in METHODS.values()
        )  # fmt: skip

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        made = {option for options in self.options.values() for option in options}
        singles = ("mask", "chunks", "reset", "transform", "modalities", "labels", "ranks")
        made |= {name for name in singles if getattr(self, name)}
        made |= {name for name in ("resume", "reproducible") if getattr(self, name)}
        return frozenset(made)

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace; `chunk:val` for a split's."""
        told: dict[str, Plain] = {
            f"{option}:{split}": value
            for split, options in self.options.items()
            for option, value in options.items()
        }
        names = ("inputs", "labels", "mask", "modalities", "chunks", "reset", "ranks", "tolerance")
        plain: dict[str, Plain] = {name: getattr(self, name) for name in names}
        for field_, domain in self.fields.items():
            told[f"kind:{field_}"] = domain.kind
            told[f"low:{field_}"], told[f"high:{field_}"] = domain.low, domain.high
        return {**super().promises, **plain, "splits": tuple(self.options), **told}


def check_loader(loader: Loader) -> None:
    """Raise for promises of loaders that cannot be meant."""
    _check_build(loader)
    for split, options in loader.options.items():
        _check_split(split, options)
    for name, domain in loader.fields.items():
        _check_field(str(name), domain)
    if loader.chunks is not None:
        check_word("chunks", [loader.chunks], ("stream",))
    for rank in loader.ranks:
        _check_count("ranks", rank)
    if loader.batches is not None:
        _check_count("batches", loader.batches)
    if (loader.transform is None) != (loader.inverse is None):
        raise DeclarationError(
            "tg.Loader got one of transform and inverse, which are tried together. Give both."
        )
    if loader.transform is not None and loader.values is None:
        raise DeclarationError(
            "tg.Loader(transform=...) is not told what to transform."
            ' Declare it: values=tg.real("T", -1, 1).'
        )
    if loader.modalities and len(loader.modalities) < 2:
        raise DeclarationError(
            f"tg.Loader(modalities={loader.modalities!r}) names one modality, and there is nothing"
            " to compare it with. Name two or more."
        )


def _iterable(build: Any) -> bool:
    """Say whether a thing can be iterated as it is, which a class cannot."""
    return not isinstance(build, type) and (
        hasattr(build, "__iter__") or (hasattr(build, "__getitem__") and not callable(build))
    )


def _check_build(loader: Loader) -> None:
    """Raise where what was given is neither iterable nor can be called as declared."""
    build = loader.build
    if isinstance(build, str | bytes) or not (callable(build) or not loader.is_factory):
        raise DeclarationError(
            f"tg.Loader got {build!r}, which is neither an iterable of batches nor a function that"
            " returns one. Pass the loader, {split: loader}, or the function that makes them."
        )
    given = {*loader.arguments, *loader.vary}
    if not loader.is_factory:
        if given:
            raise DeclarationError(
                f"tg.Loader(arguments or vary={sorted(given)}) goes with a function that makes"
                f" loaders, and {loader.name} is one already. Pass the function."
            )
        return
    _check_arguments(loader, given)


def _check_arguments(loader: Loader, given: set[str]) -> None:
    """Raise for arguments that the factory does not take, and for ones that it lacks."""
    accepted = parameters(loader.build)
    for name in sorted(given):
        if accepted is not None and name not in accepted:
            raise DeclarationError(
                f"{loader.name} takes no argument {name!r}.{did_you_mean(name, accepted)}"
            )
    for name, strategy in loader.vary.items():
        if not is_strategy(strategy):
            raise DeclarationError(
                f"tg.Loader(vary={{{name!r}: {strategy!r}}}) is no Hypothesis strategy."
                f" Put a fixed value into arguments={{{name!r}: ...}}."
            )
    lacking = sorted(required_names(loader.build) - given - {*SPLITS, *RANKS, *WORLDS})
    if lacking:
        raise DeclarationError(
            f"tg.Loader({loader.name}) lacks {lacking[0]!r}, which {loader.name} cannot be called"
            f" without. Give it in arguments={{{lacking[0]!r}: ...}}."
        )
    asked = sorted(required_names(loader.build) & set(SPLITS) - given)
    if asked and not loader.options:
        raise DeclarationError(
            f"{loader.name} is called with {asked[0]!r} for each split, and none is declared."
            ' Please name them: splits=("train", "val").'
        )
    if loader.ranks and accepted is not None and not (accepted & set(RANKS)):
        raise DeclarationError(
            f"tg.Loader(ranks={loader.ranks}) needs a function that takes `rank` and `world_size`,"
            f" and {loader.name} does not. Add the two parameters."
        )


def _splits(splits: Any) -> dict[str, dict[str, Any]]:
    """Return {split: promises}; names alone promise nothing."""
    if isinstance(splits, str):
        return {splits: {}}
    if not isinstance(splits, Mapping):
        return {str(split): {} for split in splits}
    return {str(split): dict(options or {}) for split, options in splits.items()}


def _names(value: Any) -> tuple[str, ...]:
    """Return names or positions as a tuple of names; a single one is one of them."""
    return (str(value),) if isinstance(value, str | int) else tuple(str(name) for name in value)


def _check_split(split: str, options: Mapping[str, Any]) -> None:
    """Raise for what cannot be promised of a split."""
    for option in options:
        if option not in OPTIONS:
            raise DeclarationError(
                f"tg.Loader(splits={{{split!r}: ...}}) has no {option!r}."
                f"{did_you_mean(option, OPTIONS)}"
            )
    for option in ("chunk", "batch", "samples"):
        if option in options:
            _check_count(f"splits={{{split!r}: {{{option!r}", options[option])
    for option in ("shuffled", "once"):
        if not isinstance(options.get(option, True), bool):
            raise DeclarationError(
                f"tg.Loader(splits={{{split!r}: ...}}) has {option}={options[option]!r}."
                " Give True or False."
            )
    if "last" in options:
        check_word(f"last of the split {split!r}", [options["last"]], ("short", "dropped"))


def _check_field(name: str, domain: Any) -> None:
    """Raise for a field whose domain is none, or has bounds that no loader gives a size to."""
    if not isinstance(domain, Domain) or domain.shape is None:
        raise DeclarationError(
            f"tg.Loader(fields={{{name!r}: {domain!r}}}) is no domain of a tensor."
            ' Write tg.real("B T", -1, 1), or leave the field out.'
        )
    for bound in (domain.low, domain.high):
        if isinstance(bound, str):
            raise DeclarationError(
                f"tg.Loader(fields={{{name!r}: ...}}) has the bound {bound!r}, and loaders declare"
                " no sizes. Give a number."
            )


def _check_count(option: str, value: Any) -> None:
    """Raise where a count is no whole number above zero."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DeclarationError(
            f"tg.Loader({option}={value!r}) cannot be. Give a whole number >= 1."
        )
