"""Resolve what was declared into loaders: {split: loader}, made anew under a seed."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from trainguard.core.errors import SubjectError, is_ours
from trainguard.observe.tools.isolation import seed_everything
from trainguard.subjects.loader import METHODS, RANKS, SPLITS, WORLDS, Loader
from trainguard.subjects.subject import parameters, required_names

UNNAMED = "batches"  # the split of a loader of which nothing is said
_USUAL = ("train", "val", "test")
_NAMED = ("split", "subset", "partition")  # taken for the split's even where they have a default
_ALIASES = {"valid": "val", "validation": "val", "dev": "val", "eval": "val"}
_FRAMEWORKS = ("lightning", "pytorch_lightning")


@dataclass
class Loaders:
    """
    What a declared loader resolves to in one setting: a way to make the loaders of its splits.

    setting: what was drawn from `vary`. seed: what a factory is seeded with.
    """

    subject: Loader
    setting: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """Whether each call of `make` gives loaders of their own, rather than the given ones."""
        return self.subject.is_factory

    def make(
        self, seed: int | None = None, rank: int = 0, world: int = 0, *, reseed: bool = True
    ) -> dict[str, Any]:
        """
        Return {split: loader}, in the order of declaration; a factory is seeded and called anew.

        With `world`, for one of so many ranks: the factory is then given both.
        """
        if reseed:
            seed_everything(self.seed if seed is None else seed)
        subject = self.subject
        if not subject.is_factory:
            return _check_splits(subject, _resolve(subject, subject.build))
        given = {**subject.arguments, **self.setting, **_rank_arguments(subject, rank, world)}
        taker = _split_taker(subject)
        if taker and subject.options:
            made = {s: _call_build(subject.build, {**given, taker: s}) for s in subject.options}
            return _check_splits(subject, _methods_applied(made))
        return _check_splits(subject, _resolve(subject, _call_build(subject.build, given)))


def is_train(split: str) -> bool:
    """Say whether a split is one that is trained on, by its name."""
    return split.lower().startswith(("train", "fit"))


def is_evaluation(split: str) -> bool:
    """Say whether a split is one that is evaluated on, by its name."""
    return split.lower().startswith(("val", "test", "eval", "dev", "predict"))


def _call_build(build: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call the team's function; what it raises is the subject's own."""
    try:
        return build(**given)
    except Exception as error:
        # A call that does not fit is refused before it is in a frame of the team's.
        if is_ours(error) and not (isinstance(error, TypeError) and not _fits(build, given)):
            raise
        raise SubjectError(
            f"it raised {type(error).__name__} while the loaders were made: {_line(error)}",
            "make the function that builds the loaders run by itself first",
        ) from error


def _fits(build: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Say whether a function can be called with some arguments."""
    try:
        inspect.signature(build).bind(**given)
    except (TypeError, ValueError):
        return False
    return True


def _rank_arguments(subject: Loader, rank: int, world: int) -> dict[str, int]:
    """Return the arguments that tell a factory which rank it works for, by their own names."""
    accepted = parameters(subject.build) or {*RANKS[:1], *WORLDS[1:2]}
    needed = required_names(subject.build)
    told = {name: rank for name in RANKS if name in accepted}
    told.update({name: max(world, 1) for name in WORLDS if name in accepted})
    if world:
        return told
    return {name: value for name, value in told.items() if name in needed}


def _split_taker(subject: Loader) -> str:
    """Return the parameter of the factory that takes a split, or nothing."""
    given = {*subject.arguments, *subject.vary}
    needed = required_names(subject.build)
    accepted = (parameters(subject.build) or needed) - given
    takers = [n for n in SPLITS if n in accepted and (n in needed or n in _NAMED)]
    return takers[0] if takers else ""


def _resolve(subject: Loader, made: Any) -> dict[str, Any]:
    """Return {split: loader} of whatever was given or returned."""
    if any(callable(getattr(made, method, None)) for method in METHODS.values()):
        return _of_module(subject, made)
    if isinstance(made, Mapping):
        return _methods_applied({str(split): loader for split, loader in made.items()})
    if isinstance(made, tuple | list) and all(_can_serve(part) for part in made) and made:
        return _in_order(subject, list(made))
    names = tuple(subject.options) or (UNNAMED,)
    if len(names) > 1:
        raise SubjectError(
            f"it has one loader, and {len(names)} splits are declared: {', '.join(names)}",
            "return {split: loader}, or a tuple in the order of the splits",
        )
    return {names[0]: made}


def _in_order(subject: Loader, made: list[Any]) -> dict[str, Any]:
    """Name the loaders of a tuple by the declared splits, or by the usual ones."""
    names = tuple(subject.options) or _USUAL[: len(made)]
    if len(names) != len(made):
        raise SubjectError(
            f"it has {len(made)} loaders in a row, and {len(names)} splits to name them by",
            "declare as many splits as there are loaders, in their order",
        )
    return dict(zip(names, made, strict=True))


def _of_module(subject: Loader, module: Any) -> dict[str, Any]:
    """Ask an object with `train_dataloader()` and the like for its loaders."""
    if inspect.isclass(module):
        module = _call_build(module, {})
    for method in ("prepare_data", "setup"):
        _prepare(module, method)
    offered = {s: m for s, m in METHODS.items() if _own(module, m)}
    wanted = subject.options or {split: {} for split in offered if split != "predict"}
    made: dict[str, Any] = {}
    for split in wanted:
        method = offered.get(split) or offered.get(_ALIASES.get(split, ""), "")
        if not method:
            raise SubjectError(
                f"it has no loader of the split {split!r}",
                f"declare the splits that it has: {', '.join(offered) or 'none'}",
            )
        made.update(_number(split, _call_build(getattr(module, method), {})))
    return made


def _prepare(module: Any, method: str) -> None:
    """Call a method that a data module is prepared with, for all stages where it takes one."""
    function = getattr(module, method, None)
    if not callable(function):
        return
    takes = parameters(function) or set()
    _call_build(function, {"stage": None} if "stage" in takes else {})


def _own(module: Any, method: str) -> bool:
    """Say whether an object has a method of its own, not the one its framework lends it."""
    function = getattr(module, method, None)
    home = getattr(function, "__module__", "") or ""
    return callable(function) and not home.startswith(_FRAMEWORKS)


def _number(split: str, made: Any) -> dict[str, Any]:
    """Return the loader of a split, or several as `val.0`, `val.1`."""
    if isinstance(made, list | tuple) and made and all(_can_serve(part) for part in made):
        if len(made) == 1:
            return {split: made[0]}
        return {f"{split}.{index}": loader for index, loader in enumerate(made)}
    return {split: made}


def _methods_applied(made: dict[str, Any]) -> dict[str, Any]:
    """Call the functions among some loaders, which return them."""
    functions = {s: m for s, m in made.items() if callable(m) and not _can_serve(m)}
    return {**made, **{split: _call_build(function, {}) for split, function in functions.items()}}


def _can_serve(made: Any) -> bool:
    """Say whether a thing can be iterated as a loader is; tensors, arrays and words are data."""
    if isinstance(made, torch.Tensor | str | bytes | Mapping) or inspect.isclass(made):
        return False
    return hasattr(made, "__iter__") and not hasattr(made, "__array__")


def _check_splits(subject: Loader, made: dict[str, Any]) -> dict[str, Any]:
    """Return the declared splits of what was made, each of which can be iterated."""
    for split in subject.options:
        if not any(name == split or name.startswith(f"{split}.") for name in made):
            raise SubjectError(
                f"it has no loader of the split {split!r}",
                f"declare the splits that it has: {', '.join(made) or 'none'}",
            )
    chosen = {
        name: loader
        for name, loader in made.items()
        if not subject.options or name in subject.options or name.split(".")[0] in subject.options
    }
    for split, loader in chosen.items():
        _check_loader(split, loader)
    return chosen


def _check_loader(split: str, loader: Any) -> None:
    """Raise where what should be a loader cannot be iterated over batches."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise SubjectError(
            f"the split {split!r} is a dataset, which holds samples and serves no batches",
            "put it into a DataLoader",
        )
    if not _can_serve(loader):
        raise SubjectError(
            f"the split {split!r} is {_describe(loader)}, which cannot be iterated over batches",
            "return a DataLoader, or another iterable of batches",
        )


def _describe(value: Any) -> str:
    """Write what a value is, in words that fit into a sentence."""
    return "None" if value is None else f"of the type {type(value).__name__}"


def _line(error: BaseException) -> str:
    """Return the first line of what an exception says."""
    return (str(error).strip().splitlines() or ["(no message)"])[0]


@contextmanager
def keep_state(loaders: Mapping[str, Any]) -> Iterator[None]:
    """Put generators and epochs of loaders, their samplers and datasets back after a block."""
    parts = [part for loader in loaders.values() for part in parts_of(loader)]
    states = [(g, g.get_state()) for g in map(_generator, parts) if g is not None]
    epochs = [(p, vars(p)["epoch"]) for p in parts if "epoch" in getattr(p, "__dict__", {})]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
        for part, epoch in epochs:
            vars(part)["epoch"] = epoch


def parts_of(loader: Any) -> list[Any]:
    """Return a loader with its batch sampler, samplers and dataset, as far as it has them."""
    names = ("batch_sampler", "sampler", "dataset")
    found = [loader, *(getattr(loader, name, None) for name in names)]
    found.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    unique = {id(part): part for part in found if part is not None}
    return list(unique.values())


def _generator(part: Any) -> torch.Generator | None:
    """Return the generator of a part of a loader, if it has one."""
    generator = getattr(part, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the parts of a loader which epoch begins, as a training loop does."""
    for part in parts_of(loader):
        tell = getattr(part, "set_epoch", None)
        if callable(tell):
            tell(epoch)
