"""What can be reached from a loader: the random generators and the arrays that it holds."""

import random
import sys
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.tools.isolation import checksum_streams
from trainguard.observe.tools.user_line import foreign

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_DEEP = 8
_MOST = 20_000  # objects that are looked at
WIDE = 1_000  # elements of one container that are looked at
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)


def reachable(*roots: object) -> Iterator[tuple[str, Any]]:
    """
    Iterate over what objects hold, with the name that each thing goes by there.

    Attributes, elements, closures, and what stands in the modules of the user's own classes and
    functions, where that is a generator.
    """
    seen: set[int] = set()
    queue: list[tuple[str, Any, int]] = [("", root, 0) for root in roots]
    while queue and len(seen) < _MOST:
        name, thing, depth = queue.pop(0)
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen.add(id(thing))
        yield name, thing
        if depth < _DEEP and not isinstance(thing, (torch.Tensor, np.ndarray, *GENERATORS)):
            queue += [(inner or name, held, depth + 1) for inner, held in _iterate_held(thing)]


def generators(*roots: object) -> dict[str, Any]:
    """Return the generators that objects hold, by name; the global ones are not among them."""
    found: dict[str, Any] = {}
    for name, thing in reachable(*roots):
        if isinstance(thing, GENERATORS) and thing is not torch.default_generator:
            found[name if name not in found else f"{name} {len(found)}"] = thing
    return found


def named_arrays(*roots: object) -> list[tuple[str, torch.Tensor | np.ndarray]]:
    """Return the tensors and the numeric arrays on the CPU that objects hold, with their names."""
    return [
        (name, thing)
        for name, thing in reachable(*roots)
        if (isinstance(thing, torch.Tensor) and thing.device.type == "cpu" and not thing.is_sparse)
        or (isinstance(thing, np.ndarray) and thing.dtype.kind in "biufc")
    ]


def state_of(generator: Any) -> Any:
    """Return the state of a generator of any kind."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def put_back(generator: Any, state: Any) -> None:
    """Set the state of a generator of any kind."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def streams(*roots: object) -> dict[str, int]:
    """Return a number for the state of each generator: the global ones, and those held."""
    states = {f"the global generator of {name}": s for name, s in checksum_streams().items()}
    held = {f"the generator `{name}`": state_of(each) for name, each in generators(*roots).items()}
    return {name: likeness(state) for name, state in {**states, **held}.items()}


def _iterate_held(thing: Any) -> Iterator[tuple[str, Any]]:
    """
    Iterate over what one object holds itself.

    Of other mappings than dictionaries these are the attributes: to ask for their elements runs
    code of the user's, which may read a file, or raise.
    """
    if isinstance(thing, dict | MappingProxyType):
        items = dict.items(thing) if isinstance(thing, dict) else thing.items()
        yield from ((str(key), value) for key, value in list(items)[:WIDE])
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from (("", value) for value in list(thing)[:WIDE])
    elif isinstance(thing, partial):
        yield from (("", value) for value in (thing.func, *thing.args, *thing.keywords.values()))
    elif isinstance(thing, MethodType):
        yield from (("", value) for value in (thing.__self__, thing.__func__))
    elif isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
        yield from ((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
        yield from (("", value) for value in thing.__defaults__ or ())
        yield from _module_level(thing.__module__)
    else:
        yield from list((getattr(thing, "__dict__", None) or {}).items())[:WIDE]
        yield from _module_level(type(thing).__module__)


def _is_filled(cell: Any) -> bool:
    """Say whether a variable of a closure has a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _module_level(name: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the generators that stand in one of the user's own modules."""
    module = sys.modules.get(name)
    if module is not None and foreign(getattr(module, "__file__", None) or "<"):
        for variable, value in list(vars(module).items()):
            if isinstance(value, GENERATORS):
                yield variable, value
