"""The few words that all judgements of models write alike."""

from collections.abc import Callable, Iterable

from trainguard.events.trace import Pass


def format_place(seen: Pass) -> str:
    """Write the place of a pass: the output, parameter or module, or the model as a whole."""
    return seen.place or "the model"


def sizes(seen: Pass) -> str:
    """Write the sizes of the inputs: `B=4 T=16`."""
    return " ".join(f"{name}={size}" for name, size in seen.sizes)


def worst(passes: Iterable[Pass], badness: Callable[[Pass], float]) -> list[Pass]:
    """Return of each place the worst pass, in the order in which the places were seen."""
    found: dict[str, Pass] = {}
    for seen in passes:
        known = found.get(seen.place)
        if known is None or badness(seen) > badness(known):
            found[seen.place] = seen
    return list(found.values())
