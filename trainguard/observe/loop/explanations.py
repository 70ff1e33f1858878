"""Finds the lines of the user's code that may explain what watchers have found."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.loop import Evaluation, Parameter, Term
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe
from trainguard.observe.tools.written_lines import (
    find_backward,
    find_casts,
    find_manual_steps,
    find_modes,
    find_orders,
    find_thaws,
    find_updates,
)

_Find = Callable[[str], list[str]]  # lines of a file
_ORDER = "order of rows"
# By the kind of a probe: what its lines stand for, and what finds them in the file of the probe.
_LINES: dict[str, tuple[str, _Find]] = {
    "kept statistics": ("average", find_updates),
    "labels": (_ORDER, find_orders),
    "statistics": ("average", find_updates),
}


def find_origins(found: Sequence[Event]) -> Iterator[Origin]:
    """Yield the lines that may explain some of what was found, each once."""
    asked = {(name, find, _place(source)[0]) for name, find, source in _questions(found)}
    told = {Origin(name=name, source=line) for name, find, file in asked for line in find(file)}
    yield from sorted(told, key=lambda origin: (origin.name, *_place(origin.source)))


def _questions(found: Sequence[Event]) -> Iterator[tuple[str, _Find, str]]:
    """Yield what lines are to be found for: a name, how, and a line of the file."""
    losses = {e.source for e in found if isinstance(e, Term) and not e.evaluation}
    for source in losses:
        yield "steps by hand", find_manual_steps, source
        yield "backward", find_backward, source
    for event in found:
        if isinstance(event, BaselineFit) and event.evaluated > event.learnable:
            yield _ORDER, find_orders, event.source
        elif isinstance(event, Evaluation) and not event.training:
            yield "evaluation mode", find_modes, event.source
        elif isinstance(event, Probe) and event.probe in _LINES:
            yield *_LINES[event.probe], event.source
    parameters = [each for each in found if isinstance(each, Parameter) and each.received]
    yield from _questions_of(parameters, losses)


def _questions_of(
    parameters: Iterable[Parameter], losses: Iterable[str]
) -> Iterator[tuple[str, _Find, str]]:
    """Yield what is to be found for parameters that get gradients: in the files of the losses."""
    for parameter in parameters:
        for source in {parameter.source, *losses} - {""}:
            if parameter.thawed and not parameter.held:
                yield "thawed", find_thaws, source
            if not parameter.moved:
                yield "cast", find_casts, source


def _place(source: str) -> tuple[str, int]:
    """Return the file and the number of a line."""
    file, _, line = source.rpartition(":")
    return file, int(line or 0)
