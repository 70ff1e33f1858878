"""Run a function on examples that Hypothesis draws: the same in every run, and without a word."""

from collections.abc import Callable
from typing import TypeVar

import hypothesis
from hypothesis.strategies import SearchStrategy

E = TypeVar("E")
DRAWING = (hypothesis.Phase.generate,)
SHRINKING = (hypothesis.Phase.generate, hypothesis.Phase.shrink)


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
