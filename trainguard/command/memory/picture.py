"""The course of a step as a picture: what is held over time, stacked by category."""

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from trainguard.command.memory.report import headline
from trainguard.events.memory import MemoryCourse, MemoryReport
from trainguard.subjects.units import format_bytes

# Told apart by those who do not see all colours too: the palette of Okabe and Ito.
COLOURS: Final = {
    "parameters": "#0072b2",
    "buffers": "#7f7f7f",
    "averages": "#cc79a7",
    "optimizer": "#56b4e9",
    "inputs": "#000000",
    "gradients": "#009e73",
    "activations": "#e69f00",
    "temporaries": "#d55e00",
}
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))
_NARROW = 0.06  # of the width: a phase that is narrower has no name in the picture
_FAR = 2.5  # times the peak
_SIZE, _DOTS = (10.0, 4.6), 150  # inches, dots per inch


def picture(account: MemoryReport) -> bytes:
    """Return a PNG of a course; needs matplotlib."""
    figure = import_module("matplotlib.figure").Figure(figsize=_SIZE, dpi=_DOTS, layout="tight")
    axes = figure.subplots()
    course, scale = account.breakdown.course, unit(account)
    _stack(axes, course, scale)
    _mark(axes, account, scale)
    sizes = ", ".join(f"{name}={value}" for name, value in account.breakdown.sizes)
    axes.set_title(f"{headline(account.breakdown)}\n{sizes}", fontsize=9, loc="left")
    axes.set_ylabel(f"held, {scale[1]}")
    axes.set_xlabel(f"{course.operations:,} allocations and releases, in order")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def budget_of(account: MemoryReport) -> int:
    """Return the budget where it can be drawn: not so far above that nothing else is seen."""
    budget = account.budget or 0
    return budget if budget <= _FAR * account.breakdown.peak else 0


def unit(account: MemoryReport) -> tuple[int, str]:
    """Return the unit that the largest amount of a picture is written in."""
    most = max(account.breakdown.peak, budget_of(account))
    return next(both for both in _UNITS if most >= both[0] or both[0] == 1)


def named_phases(course: MemoryCourse) -> Iterator[tuple[int, int, str]]:
    """Yield (first, end, name) of the phases that are wide enough to bear a name."""
    ends = [first for first, _, _ in course.phases[1:]] + [len(course.held)]
    for (first, phase, step), end in zip(course.phases, ends, strict=True):
        if phase != "build" and end - first > _NARROW * len(course.held):
            yield first, end, f"{phase} {step}"


def _stack(axes: Any, course: MemoryCourse, scale: tuple[int, str]) -> None:
    """Draw the categories that are ever there, one on the other."""
    columns = zip(course.categories, zip(*course.held, strict=True), strict=True)
    used = [(name, [size / scale[0] for size in held]) for name, held in columns if any(held)]
    axes.stackplot(
        range(len(course.held)),
        [held for _, held in used],
        labels=[name for name, _ in used],
        colors=[COLOURS.get(name, "#999999") for name, _ in used],
        step="post",
        linewidth=0,
    )
    axes.set_xlim(0, max(1, len(course.held) - 1))


def _mark(axes: Any, account: MemoryReport, scale: tuple[int, str]) -> None:
    """Mark the peak, the budget and the phases."""
    course, peak = account.breakdown.course, account.breakdown.peak / scale[0]
    budget = budget_of(account) / scale[0]
    top = max(peak, budget) * 1.16
    axes.set_ylim(0, top)
    axes.set_xticks([])
    for first, end, name in named_phases(course):
        axes.axvline(first, color="#bbbbbb", linewidth=0.6)
        axes.text((first + end) / 2, top, name, ha="center", va="top", fontsize=8, color="#555555")
    told = f"peak {format_bytes(account.breakdown.peak)}"
    axes.plot([course.peak], [peak], marker="v", color="black", markersize=5)
    left = course.peak > len(course.held) / 2
    axes.annotate(
        told, (course.peak, peak), xytext=(-6 if left else 6, 4), textcoords="offset points",
        ha="right" if left else "left", fontsize=8,
    )  # fmt: skip
    if budget:
        axes.axhline(budget, color="#aa0000", linewidth=1, linestyle="--")
        axes.text(
            0, budget, f" budget {format_bytes(account.budget or 0)}", va="bottom", fontsize=8,
            color="#aa0000",
        )  # fmt: skip
