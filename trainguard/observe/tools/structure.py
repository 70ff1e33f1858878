"""
A Structure is everything about a call that is not the numbers in its tensors: sizes and arguments.

Hypothesis draws structures and finds the smallest one; the points within are swept in batches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from trainguard.core.errors import SubjectError
from trainguard.subjects.domain import Domain
from trainguard.subjects.loss import Loss

SMALLEST, LARGEST = 1, 4
E = TypeVar("E")
DRAWING = (hypothesis.Phase.generate,)
SHRINKING = (hypothesis.Phase.generate, hypothesis.Phase.shrink)


@dataclass(frozen=True)
class Structure:
    """Sizes of the named dimensions, arguments that are no tensors, and hyperparameters."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def with_sizes(self, **sizes: int) -> "Structure":
        """Return the same structure with some dimensions of other sizes."""
        return Structure({**self.sizes, **sizes}, self.arguments, self.hyperparameters)


def draw(loss: Loss, count: int, seed: int) -> list[Structure]:
    """Draw up to `count` different structures, the smallest one first; raises where it cannot."""
    drawn: list[Structure] = []
    explore_arguments(_structures(loss), keep_new(drawn), count, seed)
    return drawn


def keep_new(drawn: list[E]) -> Callable[[E], None]:
    """Return what appends an example to a list that does not have it."""
    return lambda example: None if example in drawn else drawn.append(example)


def explore_arguments(
    examples: SearchStrategy[E], test: Callable[[E], None], count: int, seed: int
) -> None:
    """Call a function with examples of declared arguments; raises where none can be drawn."""
    try:
        explore(examples, test, count, seed)
    except Unsatisfiable:
        raise SubjectError(
            "no value of its arguments can be drawn", "loosen the filters of its strategies"
        ) from None
    except Exception as error:
        raise SubjectError(
            f"drawing its arguments raised {type(error).__name__}: {str(error).splitlines()[0]}",
            "look at the strategies of the declaration",
        ) from error


def smallest(
    loss: Loss, objects: Callable[[Structure], bool], known: Structure, tries: int, seed: int
) -> Structure:
    """Return the smallest structure to which `objects`, or the known one if none is found."""
    try:
        return hypothesis.find(
            _structures(loss), objects, settings=settings(tries), random=Random(seed)
        )
    except (NoSuchExample, Unsatisfiable):
        return known


def _structures(loss: Loss) -> st.SearchStrategy[Structure]:
    """Return the strategy of all structures that a declaration admits."""
    names = sorted({name for domain in loss.tensors.values() for name in domain.names})
    sizes = {name: _size(loss, name) for name in [*names, *(set(loss.sizes) - set(names))]}
    arguments = {
        name: st.sampled_from(domain.values) if isinstance(domain, Domain) else domain
        for name, domain in loss.inputs.items()
        if name not in loss.tensors
    }
    return st.builds(
        Structure,
        st.fixed_dictionaries(sizes),
        st.fixed_dictionaries(arguments),
        st.fixed_dictionaries(dict(loss.vary)),
    )


def _size(loss: Loss, name: str) -> st.SearchStrategy[int]:
    """Return the strategy for the size of one dimension."""
    declared = loss.sizes.get(name, (SMALLEST, LARGEST))
    least, most = (declared, declared) if isinstance(declared, int) else declared
    return st.integers(least, most)


def explore(
    examples: SearchStrategy[E],
    test: Callable[[E], None],
    count: int,
    seed: int,
    phases: tuple[hypothesis.Phase, ...] = DRAWING,
) -> None:
    """Call a function with up to `count` examples; what it raises is raised for the smallest."""

    @hypothesis.seed(seed)
    @hypothesis.settings(settings(count), phases=phases)
    @hypothesis.given(examples)
    def each(example: E) -> None:
        test(example)

    each()


def settings(count: int) -> hypothesis.settings:
    """Return settings that draw the same examples in every run and complain about nothing."""
    return hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
