"""The few structures that a model is looked at in: drawn, and written as code to paste."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.tools.structure import Structure, explore_arguments
from trainguard.subjects.domain import BATCH, Domain
from trainguard.subjects.model import Model
from trainguard.subjects.model_inputs import forward_inputs

_BATCH = (4, 4)
_SIZE = (2, 8)
_MOST_VALUES = 8
_TRIES = 3  # draws may repeat
_LONGEST = 60


def draw(model: Model, count: int, seed: int) -> list[Structure]:
    """
    Draw up to `count` different structures.

    The first has the largest sizes, the second the smallest; the others lie in between. Choices
    take their values in turn, so that each is met: layers may be there for one of them only.
    """
    choices = {n: d.values for n, d in _arguments(model).items() if isinstance(d, Domain)}
    count = max([count, *(min(len(values), _MOST_VALUES) for values in choices.values())])
    drawn: list[Structure] = []

    def collect(structure: Structure) -> None:
        """Keep a structure that is new."""
        turn = len(drawn)
        sized = _at_the_ends(model, structure, turn)
        chosen = {name: values[turn % len(values)] for name, values in choices.items()}
        made = replace(sized, arguments={**sized.arguments, **chosen})
        if made not in drawn and turn < count:
            drawn.append(made)

    explore_arguments(_structures(model), collect, _TRIES * count, seed)
    return drawn


def spans(model: Model) -> dict[str, tuple[int, int]]:
    """Return the least and the largest size of every dimension, those of bounds included."""
    names = sorted({name for domain in model.tensors.values() for name in domain.names})
    found = {}
    for name in [*names, *(set(model.sizes) - set(names))]:
        declared = model.sizes.get(name, _BATCH if name == BATCH else _SIZE)
        found[name] = (declared, declared) if isinstance(declared, int) else declared
    return found


def _at_the_ends(model: Model, structure: Structure, index: int) -> Structure:
    """Return a structure with all sizes at one end, for the first two."""
    if index > 1:
        return structure
    return structure.with_sizes(**{name: span[1 - index] for name, span in spans(model).items()})


def _structures(model: Model) -> st.SearchStrategy[Structure]:
    """Return the strategy of all structures that a declaration admits."""
    arguments = {
        name: st.sampled_from(domain.values) if isinstance(domain, Domain) else domain
        for name, domain in _arguments(model).items()
    }
    return st.builds(
        Structure,
        st.fixed_dictionaries({n: st.integers(*span) for n, span in spans(model).items()}),
        st.fixed_dictionaries(arguments),
        st.fixed_dictionaries(dict(model.vary)),
    )


def _arguments(model: Model) -> dict[str, Any]:
    """Return the declared inputs that are no tensors."""
    return {name: d for name, d in model.inputs.items() if name not in model.tensors}


def call(network: ModelCase, sizes: dict[str, int]) -> str:
    """Write how the model is built and called in one structure, with inputs drawn alike."""
    every = {**network.sizes, **sizes}
    fed = [
        f"{name}={_value(domain, every, network.structure.arguments.get(name))}"
        for name, domain in network.model.inputs.items()
        if name in forward_inputs(network.model.model, network.model.loss, network.model.inputs)
    ]
    return f"{_build_code(network)}({', '.join(fed)})"


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
