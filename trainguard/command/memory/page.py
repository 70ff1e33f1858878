"""The report of `trainguard memory` as one page of HTML that needs nothing from elsewhere."""

import json
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from trainguard.command.memory.picture import COLOURS, budget_of, named_phases
from trainguard.command.memory.report import fitting, headline, of_which, rows, short
from trainguard.events.memory import MemoryCourse, MemoryReport, PeakPart
from trainguard.subjects.units import format_bytes

WIDTH, HEIGHT = 1000, 380  # of the picture, in its own units
_TEMPLATE: Final = Path(__file__).with_name("page.html")
_HEADROOM = 1.12


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
        "peak": (
            round(course.peak * across, 1),
            round(HEIGHT - account.breakdown.peak * up, 1),
        ),
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
