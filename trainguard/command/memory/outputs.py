"""What `trainguard memory` writes: a JSON document, a picture, and a page of HTML with both."""

import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from trainguard.command.memory.report import fitting, headline, of_which, rows, short
from trainguard.events.memory import Fit, MemoryCourse, MemoryReport, PeakPart
from trainguard.subjects.units import format_bytes

VERSION = 1
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
WIDTH, HEIGHT = 1000, 380  # of the picture, in its own units
_TEMPLATE: Final = Path(__file__).with_name("page.html")
_HEADROOM = 1.12


def document(account: MemoryReport) -> str:
    """Return what was found, in bytes, as JSON; `course` holds the bytes of each category."""
    told = account.breakdown
    course = asdict(told.course)
    return (
        json.dumps(
            {
                "version": VERSION,
                "target": account.target,
                "subject": told.subject,
                "how": told.how,
                "detail": told.detail,
                "sizes": dict(told.sizes),
                "peak": {
                    "bytes": told.peak,
                    "moment": told.moment,
                    "source": told.source,
                    "exhausted": told.exhausted,
                },
                "categories": {
                    part.name: {"at_peak": part.held, "highest": part.highest}
                    for part in told.categories
                },
                "modules": [_module(part) for part in told.modules],
                "lines": [{"source": part.name, "at_peak": part.held} for part in told.lines],
                "budget": account.budget,
                "fits": [_fit(fit) for fit in account.fits],
                "course": course,
            },
            indent=1,
            allow_nan=False,
        )
        + "\n"
    )


def _module(part: PeakPart) -> dict[str, Any]:
    """Return a module, or several that differ by a number."""
    return {
        "module": part.name,
        "count": part.count,
        "at_peak": part.held,
        "categories": dict(part.categories),
    }


def _fit(fit: Fit) -> dict[str, Any]:
    """Return the largest size that fits; null stands for what was not found."""
    return {
        "name": fit.name,
        "most": fit.most or None,
        "peak": fit.peak or None,
        "next": fit.next or None,
        "above": fit.above or None,
        "why": fit.why,
        "grain": fit.grain,
        "tried": fit.tried,
    }


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


def page(account: MemoryReport) -> str:
    """Return the page; needs jinja2."""
    jinja2 = import_module("jinja2")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["bytes"] = format_bytes
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    told = account.breakdown
    text: str = template.render(
        headline=headline(told),
        rows=[*rows(told), *(fitting(account) if account.budget is not None else ())],
        told=told,
        modules=[(part, of_which(part)) for part in told.modules],
        lines=[PeakPart(name=short(part.name), held=part.held) for part in told.lines],
        picture=_picture(account),
    )
    return text


def _picture(account: MemoryReport) -> dict[str, Any]:
    """Return what the template draws: areas, phases, marks, and the numbers that it reads out."""
    course = account.breakdown.course
    budget = budget_of(account)
    top = max(account.breakdown.peak, budget) * _HEADROOM
    across, up = WIDTH / max(1, len(course.held) - 1), HEIGHT / top
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "areas": _areas(course, across, up),
        "phases": [
            (round(first * across, 1), round((first + end) / 2 * across, 1), name)
            for first, end, name in named_phases(course)
        ],
        "peak": (round(course.peak * across, 1), round(HEIGHT - account.breakdown.peak * up, 1)),
        "budget": round(HEIGHT - budget * up, 1) if budget else None,
        # In a script, "</" would end it, whatever stands around it.
        "data": json.dumps({"names": course.categories, "held": course.held}).replace(
            "<", "\\u003c"
        ),
        "legend": [(name, COLOURS.get(name, "#999999")) for name in reversed(course.categories)],
    }


def _areas(course: MemoryCourse, across: float, up: float) -> list[tuple[str, str, str]]:
    """Return (category, colour, points) of each area, from the lowest to the highest."""
    stacked = [list(accumulate(row, initial=0)) for row in course.held]
    areas = []
    for place, name in enumerate(course.categories):
        lower = [_point(x * across, row[place] * up) for x, row in enumerate(stacked)]
        upper = [_point(x * across, row[place + 1] * up) for x, row in enumerate(stacked)]
        areas.append((name, COLOURS.get(name, "#999999"), " ".join([*lower, *reversed(upper)])))
    return areas


def _point(x: float, y: float) -> str:
    """Return a point of the picture, in which y counts downwards."""
    return f"{x:.1f},{HEIGHT - y:.1f}"
