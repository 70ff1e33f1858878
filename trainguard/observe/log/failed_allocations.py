"""Allocations that failed, as torch tells them: what was asked for, free, in use and reserved."""

import re
from collections.abc import Iterator

from trainguard.events.log import Exhausted
from trainguard.observe.log.run import LoggedRun

_SIZE = {"b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMGT]?i?B)")
_AMOUNTS = {
    "capacity": re.compile(
        r"([\d.]+) ([KMGT]?i?B) total capacity|total capacity of ([\d.]+) (\S+)"
    ),
    "free": re.compile(r"([\d.]+) ([KMGT]?i?B) free|of which ([\d.]+) ([KMGT]?i?B) is free"),
    "allocated": re.compile(
        r"([\d.]+) ([KMGT]?i?B) already allocated|memory ([\d.]+) ([KMGT]?i?B) is allocated"
    ),
    "reserved": re.compile(
        r"([\d.]+) ([KMGT]?i?B) reserved in total|memory in use\. .*?,? and "
        r"([\d.]+) ([KMGT]?i?B) is reserved by PyTorch but unallocated"
    ),
}


def find_failed(run: LoggedRun) -> Iterator[Exhausted]:
    """Yield the allocations that failed, one for each message that says how much was asked for."""
    for lost, step in run.lost:
        asked = _ASKED.search(lost.text)
        if asked is not None:
            amounts = {name: _amount(form, lost.text) for name, form in _AMOUNTS.items()}
            if "unallocated" in lost.text:  # newer messages tell only what is not in use
                amounts["reserved"] += amounts["allocated"]
            yield Exhausted(
                step=int(step),
                asked=float(asked[1]) * _SIZE[asked[2].lower()],
                source=f"{run.sources[0].path}:{lost.line}",
                capacity=amounts["capacity"],
                free=amounts["free"],
                allocated=amounts["allocated"],
                reserved=amounts["reserved"],
            )


def _amount(form: re.Pattern[str], text: str) -> float:
    """Return an amount of memory that a message tells; 0 where it does not."""
    found = form.search(text)
    told = [group for group in found.groups() if group] if found else []
    return float(told[0]) * _SIZE.get(told[1].lower(), 0.0) if len(told) == 2 else 0.0
