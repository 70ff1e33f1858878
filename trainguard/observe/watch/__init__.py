"""What a recorder watches: one file for each thing, see `watcher`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# In this order they are told what happens: gradients are measured before others look at norms.
_WATCHERS = (
    ("conditions", "Conditions"),
    ("scaling", "Scaling"),
    ("gradients", "Gradients"),
    ("losses", "Losses"),
    ("clipping", "Clipping"),
    ("rates", "Rates"),
    ("updates", "Updates"),
    ("forwards", "Forwards"),
    ("terms", "Terms"),
    ("shares", "Shares"),
    ("pairs", "Pairs"),
    ("repeats", "Repeats"),
    ("mixing", "Mixing"),
    ("lookahead", "Lookahead"),
    ("sharing", "Sharing"),
    ("batches", "Batches"),
    ("targets", "Targets"),
    ("averages", "Averages"),
    ("parameters", "Parameters"),
    ("times", "Times"),
    ("logged", "Logged"),
    ("reads", "Reads"),
)


# Those that make the columns of curves: all that a run needs which is made for them alone.
_OF_CURVES = ("conditions", "scaling", "gradients", "losses", "rates", "updates", "times")


def watchers(of_curves: bool = False) -> "list[Callable[[Any], Any]]":
    """Return the classes of watchers, in the order in which they are told: all, or a few."""
    chosen = (w for w in _WATCHERS if not of_curves or w[0] in _OF_CURVES)
    found = ((import_module(f"{__name__}.{file}"), name) for file, name in chosen)
    return [getattr(module, name) for module, name in found]
