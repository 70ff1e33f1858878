"""Watches for operations below a loss whose slope is infinite somewhere, such as a root at zero."""

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.gradients.gradients import Gradients
from trainguard.observe.loop.watch.gradients.replaced_gradients import ReplacedGradients
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.user_line import foreign, user_frames

_MOST_NODES = 20000
_MOST_FILES, _MOST_LINES, _FRAMES = 64, 3, 16
_HOST = {"cmath", "jnp", "math", "np", "numpy"}  # whose functions make no graph
# What autograd calls it, and Python. Norms, deviations and distances of torch are flat at zero.
_STEEP = {
    "AcosBackward": ("acos", "arccos"),
    "AsinBackward": ("asin", "arcsin"),
    "PowBackward": ("pow", "float_power"),
    "SqrtBackward": ("sqrt",),
}
# Of these the value is infinite too, so that the loss shows it, unless something leaves it out.
_STEEPER = {
    "LogBackward": ("log",),
    "Log2Backward": ("log2",),
    "ReciprocalBackward": ("reciprocal",),
    "RsqrtBackward": ("rsqrt",),
}
_LEFT_OUT = {"MaskedFillBackward", "NanToNumBackward", "WhereBackward"}


class SteepPlaces(Watcher):
    """
    The Probe events "steep": lines with such a function, if some gradients were not finite.

    label: the function; measured: how many lines of the user's call it.
    """

    makes = ("Probe:steep",)
    relies_on = ("Gradients", "ReplacedGradients")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._names: dict[str, None] = {}
        self._near: dict[str, None] = {}  # files of the model and of what trains it

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down which such operations a loss is made of."""
        found = dict.fromkeys(_find_steep(loss.grad_fn)) if loss.grad_fn is not None else {}
        if found.keys() - self._names:
            self._names |= found
            self._near |= dict.fromkeys(f.f_code.co_filename for f in user_frames(_FRAMES))
            parts = (part for root in self.recorder.names.roots() for part in root.modules())
            self._near |= dict.fromkeys(_file_of(type(part).__module__) for part in parts)

    def finish(self) -> Iterable[Event]:
        """Return where the user's code has them, if a gradient was not finite."""
        replaced = self.recorder.watcher(ReplacedGradients).count > 0
        unsound = self.recorder.watcher(Gradients).unsound or replaced
        for name in self._names if unsound else ():
            near = [place for file in self._near for place in _calls_of(name, file)]
            lines = near or [place for file in _own_files() for place in _calls_of(name, file)]
            for place in lines if len(lines) <= _MOST_LINES else ():  # of more none is telling
                yield Probe(probe="steep", measured=len(lines), label=name, source=place)


def _find_steep(root: Node) -> Iterator[str]:
    """Yield the functions below a loss that are infinitely steep somewhere."""
    nodes = list(autograd_graph.below(root, _MOST_NODES))
    kinds = {kind_of(node) for node in nodes if kind_of(node) != "PowBackward" or _is_root(node)}
    able = _STEEP | _STEEPER if kinds & _LEFT_OUT else _STEEP
    yield from (names[0] for kind, names in able.items() if kind in kinds)


def _is_root(power: Node) -> bool:
    """Say whether a power has a fraction for its exponent."""
    exponent = getattr(power, "_saved_exponent", None)
    return isinstance(exponent, float) and 0 < exponent < 1


def _file_of(module: str) -> str:
    """Return the file of a module that is loaded, if it is the user's own; else nothing."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") and foreign(file) else ""


def _own_files() -> list[str]:
    """Return the files of the user's own code that are loaded."""
    files = dict.fromkeys(map(_file_of, list(sys.modules)))
    return [file for file in files if file][:_MOST_FILES]


@lru_cache(maxsize=4 * _MOST_FILES)
def _calls_of(name: str, file: str) -> list[str]:
    """Return the lines of a file that call a function of torch, as `file:line`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    words = next(names for names in (_STEEP | _STEEPER).values() if names[0] == name)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.expr) and _is(node, words))
    return [f"{file}:{line}" for line in sorted({call.lineno for call in calls})]


def _is(node: ast.expr, names: tuple[str, ...]) -> bool:
    """Say whether an expression calls one of some functions of torch."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        return "pow" in names and isinstance(power, float) and 0 < power < 1
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in names and "pow" not in names  # Python has its own
    called = node.func.attr.rstrip("_") if isinstance(node.func, ast.Attribute) else ""
    holder = getattr(node.func, "value", None)
    return called in names and not (isinstance(holder, ast.Name) and holder.id in _HOST)
