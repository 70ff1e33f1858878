"""Draw the few structures that a model is tried at: sizes, arguments and hyperparameters."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.structure import Structure, explore
from trainguard.subjects.domain import BATCH, Domain
from trainguard.subjects.model import Model

_BATCH = (4, 4)
_SIZE = (2, 8)
_MOST_VALUES = 8
_TRIES = 3  # draws may repeat


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

    try:
        explore(_structures(model), collect, _TRIES * count, seed)
    except Unsatisfiable:
        raise SubjectError(
            "no value of its arguments can be drawn", "loosen the filters of its strategies"
        ) from None
    except Exception as error:
        raise SubjectError(
            f"drawing its arguments raised {type(error).__name__}: {str(error).splitlines()[0]}",
            "look at the strategies of the declaration",
        ) from error
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
