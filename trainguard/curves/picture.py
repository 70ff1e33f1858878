"""The picture of a curve that left its band: old and new, the band, and the difference."""

from pathlib import Path
from statistics import fmean
from typing import Any

from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import align
from trainguard.events.curve import Kept

_THEN, _NOW = "#4c72b0", "#dd8452"


def draw(kept: Kept, title: str, file: Path) -> None:
    """Write a PNG of a curve over its snapshot, above their difference."""
    # Without pyplot, which would choose a window system and keep the figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    before, now = Curve.from_text(kept.kept), Curve.from_text(kept.found, finite=False)
    figure = Figure(figsize=(8, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    top.set_title(title)
    if len(before.runs) > 1:
        _draw_seeds(top, before, now)
        _draw_means(bottom, before, now)
    else:
        _draw_values(top, before, now)
        _draw_difference(bottom, before, now)
    bottom.set_xlabel("step")
    top.legend(loc="best")
    figure.savefig(file)


def _draw_values(axes: Any, before: Curve, now: Curve) -> None:
    """Draw what was blessed with its band, and what is now."""
    both = align(before, before)
    scales = before.scales()
    low = [v - b * s for v, b, s in zip(both.kept, both.band, scales, strict=True)]
    high = [v + b * s for v, b, s in zip(both.kept, both.band, scales, strict=True)]
    axes.fill_between(both.steps, low, high, color=_THEN, alpha=0.25, label="band")
    axes.plot(before.steps, before.values, color=_THEN, label="snapshot")
    axes.plot(now.steps, now.values, color=_NOW, linestyle="--", label="now")
    axes.set_ylabel(before.column)


def _draw_difference(axes: Any, before: Curve, now: Curve) -> None:
    """Draw how far apart they are, and what is allowed, both relative to the snapshot."""
    both = align(before, now)
    axes.plot(both.steps, [abs(d) for d in both.differences], color=_NOW, label="difference")
    axes.fill_between(both.steps, both.band, color=_THEN, alpha=0.25, label="band")
    axes.set_yscale("log")
    axes.set_ylabel("relative difference")
    axes.legend(loc="best")


def _draw_seeds(axes: Any, before: Curve, now: Curve) -> None:
    """Draw the runs of all seeds, then and now."""
    for curve, colour, label in ((before, _THEN, "snapshot"), (now, _NOW, "now")):
        for seed, run in enumerate(curve.runs):
            name = {} if seed else {"label": label}
            axes.plot(curve.steps, run, color=colour, alpha=0.6, linewidth=1, **name)
    axes.set_ylabel(before.column)


def _draw_means(axes: Any, before: Curve, now: Curve) -> None:
    """Draw the difference of the means over the seeds, at the steps that both have."""
    rows = now.rows
    steps = [step for step in before.steps if step in rows]
    means = [[fmean(values) for values in zip(*c.runs, strict=True)] for c in (before, now)]
    then = before.rows
    away = [means[1][rows[step]] - means[0][then[step]] for step in steps]
    axes.plot(steps, away, color=_NOW)
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.set_ylabel("difference of the means")
