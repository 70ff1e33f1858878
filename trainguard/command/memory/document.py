"""The JSON document of `trainguard memory`."""

import json
from dataclasses import asdict
from typing import Any

from trainguard.events.memory import Fit, MemoryReport, PeakPart

VERSION = 1


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
