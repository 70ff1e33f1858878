"""
The probes of the state dict and of copies.

"unloadable": 1 where the state dict of one model does not load strictly into another; `detail`
    says why, `at` whether the first had run before.
"state dtype": an entry (`place`) that is saved in a dtype (`detail`) other than the model's.
"state value": how far an entry is from the model's own value after it was saved and loaded.
"untied": parameters (`place`) that share their memory, and do so no more after loading.
"restored": how far the outputs of a model, and of one from another seed that has loaded its state
    dict, are apart in evaluation mode; `detail` names what differs and is not in the state dict.

"shared": 1 for a trained parameter or a saved buffer (`place`) whose memory a copy shares.
"copy untied": 1 where parameters (`place`) share their memory in a model and not in its copy.
"copied": how far the outputs of a model and of its copy are apart, relative to the largest.
"follows": how far the outputs of a copy move when the parameters of its original do.
"""

import copy
import io
from collections.abc import Iterator
from textwrap import shorten
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import apart, largest
from trainguard.observe.model.model_case import ModelCase, call_guarded, describe_error
from trainguard.observe.model.outputs import Outputs
from trainguard.observe.tools.local_values import start_of, storage_of

State = dict[str, Any]
_RUNS = 2
_OTHER = 101  # the seed of the model that is loaded into


def observe_state(network: ModelCase) -> Iterator[Pass]:
    """Save a model, load it into another one, and see whether they are the same."""
    if network.case and not network.model.vary:
        return  # no size of an input matters here
    fresh = network.build()
    restored = yield from _round_trip(network, fresh, "as it was built")
    if restored is None:
        return
    if _run(network, fresh.train()):
        yield from _round_trip(network, fresh, "after it was called in training")


def _round_trip(network: ModelCase, model: nn.Module, at: str) -> Any:
    """Yield what a round trip of one model shows, and return the model that was loaded."""
    other = _other(network)
    try:
        state = _saved_and_read(call_guarded(model.state_dict))
        call_guarded(other.load_state_dict, state)
    except SubjectError as fault:
        why = _why(fault)
        yield network.make_event("unloadable", at=at, measured=1.0, detail=why)
        return None
    yield from _entries(network, model, other, state, at)
    for names in tied_groups(model):
        if names not in tied_groups(other):
            yield network.make_event("untied", place=", ".join(names), at=at, measured=1.0)
    yield from _outputs(network, model, other, at)
    return other


def _why(fault: SubjectError) -> str:
    """Write why a state dict does not load: the first key that is the matter, where torch says."""
    error = fault.__cause__ or fault
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorten(lines[1], 160) if len(lines) > 1 else describe_error(error)


def _other(network: ModelCase) -> nn.Module:
    """Build a model with other values: from another seed, or else by scrambling them."""
    other = network.build(_OTHER)
    if not network.is_seeded:
        scramble(other)
    return other


def scramble(module: nn.Module) -> None:
    """Add random numbers to all trained parameters, and to the buffers of floats that are saved."""
    generator, kept = Generator().manual_seed(_OTHER), set(module.state_dict())
    parameters = [p for p in module.parameters() if p.requires_grad]
    buffers = [b for name, b in module.named_buffers() if name in kept]
    with torch.no_grad():
        for tensor in (*parameters, *buffers):
            if tensor.is_floating_point():
                drawn = torch.rand(tensor.shape, generator=generator)
                tensor.add_(drawn.to(tensor))  # positive: a variance stays one


def _saved_and_read(state: State) -> State:
    """Write a state dict to a file in memory and read it back."""
    file = io.BytesIO()
    call_guarded(torch.save, state, file)
    file.seek(0)
    read: State = torch.load(file, weights_only=False)
    return read


def _entries(
    network: ModelCase, model: nn.Module, other: nn.Module, state: State, at: str
) -> Iterator[Pass]:
    """Yield the entries whose dtype or value is not what it was."""
    theirs = _live(other)
    for name, tensor in _live(model).items():
        entry, loaded = state.get(name), theirs.get(name)
        if entry is None and not (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
            _lend(tensor, loaded)  # a buffer that is not saved is judged by the outputs
            continue
        dtypes = [t.dtype for t in (entry, loaded) if isinstance(t, Tensor)]
        odd = next((dtype for dtype in dtypes if dtype != tensor.dtype), None)
        if odd is not None:
            detail = f"{_word(odd)} instead of {_word(tensor.dtype)}"
            yield network.make_event("state dtype", place=name, at=at, measured=1.0, detail=detail)
        elif loaded is None or apart(loaded, tensor):
            yield network.make_event(
                "state value", place=name, at=at, measured=apart(loaded, tensor)
            )


def _lend(tensor: Tensor, loaded: Tensor | None) -> None:
    """Copy a frozen parameter that is left out of checkpoints: it comes from a file of its own."""
    if isinstance(tensor, nn.Parameter) and loaded is not None and loaded.shape == tensor.shape:
        loaded.data.copy_(tensor.data)


def _outputs(network: ModelCase, model: nn.Module, other: nn.Module, at: str) -> Iterator[Pass]:
    """Yield how far the outputs of a model and of the one that loaded its state are apart."""
    inputs = network.draw()
    with torch.no_grad():
        model.eval()
        other.eval()
        lost = _find_unsaved(model, other)
        first = network.call(model, inputs)
        place, gap = largest(network.call(other, inputs), first)
        if gap and _carries(network, model, inputs, first):
            return
    yield network.make_event("restored", place=place, at=at, measured=gap, detail=lost)


def _find_unsaved(model: nn.Module, other: nn.Module) -> str:
    """Return the name of a tensor that is not saved and differs between two models, if any."""
    kept, theirs = set(model.state_dict()), dict(other.named_modules())
    for prefix, part in model.named_modules():
        held = {**vars(part), **dict(part.named_buffers(recurse=False))}
        own = {name: value for name, value in held.items() if isinstance(value, Tensor)}
        twin = theirs.get(prefix)
        for name, value in own.items():
            path = f"{prefix}.{name}" if prefix else name
            found = getattr(twin, name, None)
            if path not in kept and isinstance(found, Tensor) and apart(found, value):
                return path
    return ""


def _run(network: ModelCase, model: nn.Module) -> bool:
    """Call a model a few times in training mode, and say whether it can be."""
    try:
        for seed in range(_RUNS):
            network.call(model, network.draw(seed), seed=seed)
    except SubjectError:
        return False
    return True


def _carries(network: ModelCase, model: nn.Module, inputs: State, first: Outputs) -> bool:
    """Say whether a call in evaluation mode changes the next, as a state that is carried does."""
    if largest(network.call(model, inputs), first)[1]:
        return True
    network.call(model, network.draw(1))
    return largest(network.call(model, inputs), first)[1] > 0.0


def tied_groups(model: nn.Module) -> set[tuple[str, ...]]:
    """Return the groups of names of parameters that share their memory."""
    groups: dict[tuple[int, torch.Size], list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.numel():
            groups.setdefault((start_of(parameter), parameter.shape), []).append(name)
    return {tuple(sorted(names)) for names in groups.values() if len(names) > 1}


def _live(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers of a model by name, tied ones under each of theirs."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


def _word(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


def observe_copies(network: ModelCase) -> Iterator[Pass]:
    """Copy a model as an average of its weights would, and see whether the copy is one."""
    if network.case and not network.model.vary:
        return
    model, inputs = network.build().eval(), network.draw()
    first, second, third = (_copy(model) for _ in range(3))
    yield from _memory(network, model, first)
    with torch.no_grad():
        before = network.call(first, inputs)
        if largest(network.call(second, inputs), before)[1]:
            raise Unjudged("two copies of it give different outputs: it is random by itself")
        place, gap = largest(before, network.call(model, inputs))
        yield network.make_event("copied", place=place, measured=gap)
        scramble(model)
        place, gap = largest(network.call(third, inputs), before)
        yield network.make_event("follows", place=place, measured=gap)


def _copy(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise Unjudged(f"it cannot be copied: {describe_error(error)}") from error


def _memory(network: ModelCase, model: nn.Module, twin: nn.Module) -> Iterator[Pass]:
    """Yield what a copy shares with its original, and what it no longer shares within itself."""
    theirs = {storage_of(tensor) for tensor in _collect_tensors(model).values()}
    for name, tensor in _collect_tensors(twin).items():
        if storage_of(tensor) in theirs:
            yield network.make_event("shared", place=name, measured=1.0)
    for names in tied_groups(model) - tied_groups(twin):
        yield network.make_event("copy untied", place=", ".join(names), measured=1.0)


def _collect_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters and the saved buffers of a model."""
    saved = set(model.state_dict())
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {**parameters, **{name: b for name, b in model.named_buffers() if name in saved}}
