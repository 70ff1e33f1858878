"""Write the call of a model as code that can be pasted."""

from typing import Any

from trainguard.observe.model.model_case import ModelCase
from trainguard.subjects.domain import Domain
from trainguard.subjects.model_inputs import forward_inputs

_LONGEST = 60


def call(network: ModelCase, sizes: dict[str, int]) -> str:
    """Write how the model is built and called in one structure, with inputs drawn alike."""
    every = {**network.sizes, **sizes}
    fed = [
        f"{name}={_value(domain, every, network.structure.arguments.get(name))}"
        for name, domain in network.model.inputs.items()
        if name in _called_with(network)
    ]
    return f"{_build_code(network)}({', '.join(fed)})"


def _called_with(network: ModelCase) -> set[str]:
    """Return the inputs of `forward`, as far as the declaration tells."""
    return forward_inputs(network.model.model, network.model.loss, network.model.inputs)


def _build_code(network: ModelCase) -> str:
    """Write how the model is built: the call of its factory, or the declared module itself."""
    name = getattr(network.model.model, "__name__", "")
    if not name.isidentifier():
        name = f"{network.model.name}.model"
    if network.model.is_module:
        return name
    given = {**network.model.arguments, **network.structure.hyperparameters}
    words = ", ".join(f"{name}={_write_value(value)}" for name, value in given.items())
    return f"{name}({words})"


def _value(domain: Any, sizes: dict[str, int], argument: Any) -> str:
    """Write one input: a tensor drawn from its domain, or the argument itself."""
    if not isinstance(domain, Domain) or domain.shape is None:
        return _write_value(argument)
    shape = domain.dims(sizes)
    if domain.kind == "mask":
        return _mask(domain, shape)
    if domain.kind == "choice":
        return f"torch.full({shape}, {domain.values[0]!r})"
    low, high = domain.span(sizes)
    if domain.kind == "integer":
        return f"torch.randint({int(low)}, {int(high) + 1}, {shape})"
    return f"torch.empty({', '.join(map(str, shape))}).uniform_({low:g}, {high:g})"


def _write_value(value: Any) -> str:
    """Write a value as code; dots stand for what has no short code of its own."""
    text = repr(value)
    return "..." if "<" in text or len(text) > _LONGEST else text


def _mask(domain: Domain, shape: tuple[int, ...]) -> str:
    """Write a mask that keeps all of the first row, and ever less of the others."""
    keep, padding = domain.values
    *rows, length = shape
    if len(rows) != 1:
        return f"torch.full({shape}, {keep!r})"
    kept = [[length - row * (length - 1) // max(rows[0] - 1, 1)] for row in range(rows[0])]
    text = f"torch.arange({length}) {'<' if keep else '>='} torch.tensor({kept})"
    if isinstance(padding, bool):
        return text
    return f"({text}).{'float' if isinstance(padding, float) else 'long'}()"
