"""The picture of a comparison: losses, their difference, and seconds per step."""

from collections.abc import Sequence
from io import BytesIO
from statistics import median
from typing import Any, Final

from trainguard.command.compare.pairing import Comparison
from trainguard.core.errors import DeclarationError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise DeclarationError(
        "A picture needs matplotlib, which is not installed: pip install 'trainguard[plot]'."
    ) from error

_COLOURS: Final = ("#4c72b0", "#dd8452")
_LONGEST: Final = 40  # characters of a legend


def draw(found: Comparison, names: tuple[str, str]) -> bytes:
    """Return the picture of a comparison as a PNG, whatever backend matplotlib is set to."""
    figure = Figure(figsize=(12, 3.6), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    losses, apart, times = figure.subplots(1, 3)
    _lines(losses, "loss", found.losses, names)
    pairs = zip(*found.losses, strict=False)
    _lines(apart, "loss of B - loss of A", ([b - a for a, b in pairs],), ("",))
    apart.axhline(0.0, color="0.6", linewidth=0.8)
    _lines(times, "seconds per step", found.times, names)
    # The first steps hold what is done once, and would leave the others flat.
    times.set_ylim(0.0, 3 * max((median(side) for side in found.times if side), default=1.0))
    png = BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _lines(axes: Any, title: str, series: Sequence[Sequence[float]], names: Sequence[str]) -> None:
    """Draw one line for each side."""
    for values, name, colour in zip(series, names, _COLOURS, strict=False):
        label = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
        axes.plot(values, color=colour, linewidth=1.2, label=label or None)
    axes.set_title(title)
    axes.set_xlabel("step")
    if any(names):
        axes.legend(frameon=False, fontsize="small")
