"""A logged run in a few words: its files and columns, what it learned, how fast it is."""

from math import isfinite
from statistics import median
from typing import Any

from trainguard.events.loop import Evaluation, Step
from trainguard.events.trace import Trace
from trainguard.report.rate_shape import name_shape
from trainguard.report.run_summary import as_rows as rows_of_run
from trainguard.report.run_summary import duration_text, finite, summarize_run

_SHOWN = 3  # files
_DAY, _HOUR, _MINUTE = 86400, 3600, 60


def headline(trace: Trace[Any]) -> str:
    """Return one sentence on what was read."""
    told = trace.conditions
    files = told.get("files", ())
    listed = [str(file) for file in files] if isinstance(files, tuple) else []
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    unit, count = str(told.get("unit", "row")), int(_number(told.get("steps")))
    rows = f"{count:,} row{'s' * (count != 1)}"
    steps = [event.step for event in trace if isinstance(event, Step)]
    span = f", {unit} {steps[0]} to {steps[-1]}" if steps else ""
    return f"{trace.subject}: {rows}{span}, {told.get('log')}: {', '.join(listed[:_SHOWN])}{more}"


def as_rows(trace: Trace[Any]) -> list[tuple[str, str]]:
    """Return what is known of a run as labelled rows."""
    told = trace.conditions
    columns = told.get("columns", ())
    named = ", ".join(map(str, columns)) if isinstance(columns, tuple) else ""
    rows = [("columns", named)] if named else []
    rows += [row for row in rows_of_run(summarize_run(trace)) if row[0] != "memory"]
    if clock := _clock(trace):
        rows.append(("clock", clock))
    if shape := _shape(trace):
        rows.append(("schedule", shape))
    best = _best(trace)
    if best is not None:
        rows.append(("best", f"{best.module} {best.loss:.4g} at {_unit(trace)} {best.step}"))
    pace, left = _pace(trace), _left(trace)
    if pace:
        remains = f", {_long_time(left * pace)} left for {left:,.0f} steps" if left else ""
        rows.append(("pace", f"{duration_text(pace)} a {told.get('unit', 'row')}{remains}"))
    return rows


def as_plain(trace: Trace[Any]) -> dict[str, Any]:
    """Return what is known of a run as it stands in a JSON file."""
    told = trace.conditions
    best = _best(trace)
    return {
        "format": told.get("log"),
        "files": told.get("files", ()),
        "columns": told.get("columns", ()),
        "unit": told.get("unit"),
        "rows": told.get("steps"),
        "seconds_per_step": finite(_pace(trace)) or None,
        "steps_left": _left(trace),
        "clock": _clock(trace) or None,
        "schedule": _shape(trace) or None,
        "best": None
        if best is None
        else {"column": best.module, "step": best.step, "value": best.loss},
    }


def _shape(trace: Trace[Any]) -> str:
    """Return the shape of the rates in words; nothing where they are too few."""
    rates = [(e.step, e.reported[0]) for e in trace if isinstance(e, Step) and e.reported]
    return name_shape(rates, _unit(trace))


def _unit(trace: Trace[Any]) -> str:
    """Return what the rows of a log are counted in."""
    return str(trace.conditions.get("unit", "step"))


def _clock(trace: Trace[Any]) -> str:
    """Say where the clock of a log goes back; nothing where it does not."""
    told = trace.conditions.get("clock goes back")
    if not isinstance(told, tuple) or not told:
        return ""
    first, times, of = (int(_number(each)) for each in told)
    where = f"goes back at {times:,} of {of:,} rows, first at {_unit(trace)} {first:,}"
    known = any(isinstance(e, Step) and e.seconds > 0 for e in trace)
    return where + (": these are left out of the pace" if known else ": no pace is told by it")


def _number(value: object) -> float:
    """Return a number of the header, or 0."""
    return float(value) if isinstance(value, int | float) else 0.0


def _best(trace: Trace[Any]) -> Evaluation | None:
    """Return the lowest validation loss."""
    known = [e for e in trace if isinstance(e, Evaluation) and isfinite(e.loss)]
    return min(known, key=lambda e: e.loss, default=None) if len(known) > 1 else None


def _pace(trace: Trace[Any]) -> float:
    """Return the seconds of a step at the end of a log; 0 where nobody knows."""
    known = [e.seconds for e in trace if isinstance(e, Step) and e.seconds > 0]
    return median(known[-max(1, len(known) // 10) :]) if known else 0.0


def _left(trace: Trace[Any]) -> int:
    """Return how many steps were left when the log ends; 0 where nobody knows."""
    last = max((e.step for e in trace if isinstance(e, Step)), default=0)
    return max(0, int(_number(trace.conditions.get("total"))) - last)


def _long_time(seconds: float) -> str:
    """Write a long time in the unit that suits it."""
    for size, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"
