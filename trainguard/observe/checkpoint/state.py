"""
The state of a training: parameters, buffers, optimizers, averages, generators, as checksums.

It is taken right before a forward that learns, so that a run that was just resumed can be compared
with the one that was not interrupted, part by part.
"""

import gc
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trainguard.observe.tools.fingerprint import checksums
from trainguard.observe.tools.heap import living
from trainguard.observe.tools.isolation import checksum_streams

_WATCHED = (nn.Module, Optimizer, ReduceLROnPlateau, torch.amp.GradScaler)
_TABLES = (dict, list, OrderedDict)

Sums = tuple[Any, ...]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class State:
    """
    What a training has at one moment, each part by its name: {entry: checksum}.

    candidates: checksums of what has the shapes of a model's parameters: it may be an average.
    averages: the checksums of what is known to be one, by its name.
    """

    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    buffers: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    scaler: dict[str, dict[str, Any]] = field(default_factory=dict)
    plateau: dict[str, dict[str, Any]] = field(default_factory=dict)
    generator: dict[str, dict[str, Any]] = field(default_factory=dict)
    averages: dict[str, Sums] = field(default_factory=dict)
    candidates: frozenset[Sums] = frozenset()


def living_optimizers() -> tuple[Optimizer, ...]:
    """Return the optimizers that are alive."""
    return tuple(living(Optimizer))


def state_now(
    optimizers: Iterable[Optimizer], called: Iterable[nn.Module], averages: dict[str, Any]
) -> State:
    """
    Return the state of the training that goes on, of what was made since `gc.freeze()`.

    optimizers: in the order in which they were made. called: outermost modules that were called,
    whenever they were made. averages: what is known to be an average, by its name: a module, a dict
    or a list of tensors.
    """
    objects, own = gc.get_objects(), list(optimizers)
    watched = [*(one for one in objects if issubclass(type(one), _WATCHED)), *called]
    news = list({id(one): one for one in watched}.values())
    held = {id(p) for one in own for group in one.param_groups for p in group["params"]}
    roots = _outermost([one for one in news if isinstance(one, nn.Module)])
    trained = [one for one in roots if any(id(p) in held for p in one.parameters())]
    parts = {id(module) for one in trained for module in one.modules()}
    candidates = frozenset(_candidates(news, objects, trained, parts))
    averaged = sums_of(averages)
    return State(
        parameters=_checksums_by_name(trained, lambda one: one.named_parameters()),
        buffers=_checksums_by_name(trained, _persistent),
        optimizer=_checksums_by_name(own, _slots),
        scaler=_checksums_by_name(_of(news, torch.amp.GradScaler), _scale),
        plateau=_checksums_by_name(_of(news, ReduceLROnPlateau), _patience),
        generator={name: {"state": state} for name, state in checksum_streams().items()},
        averages={name: sums for name, sums in averaged.items() if sums in candidates},
        candidates=candidates,
    )


def sums_of(averages: dict[str, Any]) -> dict[str, Sums]:
    """Return the checksums of averages, each a module, a dict or a list of tensors, by name."""
    return {name: _sums(_tensors(one)) for name, one in averages.items()}


def parameters_of(optimizers: Iterable[Optimizer]) -> int:
    """Return one number for all parameters that optimizers hold."""
    held = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
    return crc32(repr(checksums(list(held.values()))).encode())


def _outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the modules that are no part of another one, those of most parameters first."""
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    outer = [module for module in modules if id(module) not in inner]
    return sorted(outer, key=lambda one: -sum(p.numel() for p in one.parameters()))


def _of(objects: Iterable[Any], kind: type[Any]) -> list[Any]:
    """Return the objects of a class."""
    return [one for one in objects if isinstance(one, kind)]


def _checksums_by_name(things: Iterable[Any], entries: Any) -> dict[str, dict[str, Any]]:
    """Return the checksums of the entries of each thing, which is called by its class."""
    told: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for thing in things:
        kind = type(thing).__name__
        counts[kind] += 1
        found = dict(entries(thing))
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        sums = dict(zip(tensors, _sums(tensors.values()), strict=True))
        if found:
            number = f"#{counts[kind]}" if counts[kind] > 1 else ""
            told[f"{kind}{number}"] = {name: sums.get(name, found[name]) for name in found}
    return told


def _sums(tensors: Iterable[torch.Tensor]) -> Sums:
    """Return a checksum for each tensor, with its shape."""
    listed = list(tensors)
    return tuple(
        (tuple(tensor.shape), total)
        for tensor, total in zip(listed, checksums(listed), strict=True)
    )


def _persistent(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that a module's own state has."""
    kept = set(nn.Module.state_dict(module))
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in kept)


def _slots(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield what an optimizer remembers of each parameter, in the order of its groups."""
    place = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                plain = isinstance(value, torch.Tensor | int | float)
                if plain and not (isinstance(value, torch.Tensor) and value.numel() == 0):
                    yield f"{key} of parameter {place}", value
            place += 1


def _scale(scaler: Any) -> Iterator[tuple[str, Any]]:
    """Yield the scale of a gradient scaler that is in use."""
    if scaler.is_enabled():
        yield "scale", float(scaler.get_scale())


def _patience(scheduler: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a plateau rule waits with."""
    for name in ("best", "num_bad_epochs", "cooldown_counter"):
        yield name, float(getattr(scheduler, name, 0.0))


def _candidates(
    news: list[Any], objects: list[Any], trained: list[nn.Module], parts: set[int]
) -> Iterator[Sums]:
    """Yield the checksums of what has the shapes of parameters that are trained."""
    shapes = {_shapes(module.parameters()) for one in trained for module in one.modules()}
    for module in _of(news, nn.Module):
        own = list(module.parameters())
        if own and id(module) not in parts and _shapes(own) in shapes:
            yield _sums(own)
    lengths = {length for one in trained for length in _lengths(one)}
    for table in objects:
        if type(table) in _TABLES and len(table) in lengths:
            tensors = _tensors(table)
            if tensors:
                yield _sums(tensors)


def _tensors(source: Any) -> list[torch.Tensor]:
    """Return the parameters of a module, or the tensors of a dict or list that has nothing else."""
    if isinstance(source, nn.Module):
        return list(source.parameters())
    values = list(source.values() if isinstance(source, dict) else source)
    return values if all(issubclass(type(value), torch.Tensor) for value in values) else []


def _lengths(module: nn.Module) -> set[int]:
    """Return how many tensors a table has that holds what is trained, all, or the state."""
    own = list(module.parameters())
    held = sum(p.requires_grad for p in own)
    return {held, len(own), len(own) + sum(1 for _ in module.buffers())}


def _shapes(tensors: Iterable[torch.Tensor]) -> Shapes:
    """Return the shapes of some tensors."""
    return tuple(tuple(tensor.shape) for tensor in tensors)
