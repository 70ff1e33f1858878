"""How the team's code is run where only its numbers are asked for."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from trainguard.observe.tools.deadline import deadline
from trainguard.observe.tools.isolation import isolate


@contextmanager
def session(seed: int, timeout: float) -> Iterator[None]:
    """Run the team's code seeded, silently, within its seconds, and leave no trace of it."""
    with isolate(seed), deadline(timeout), quiet():
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the team's code prints and warns about out of the report."""
    with (
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
