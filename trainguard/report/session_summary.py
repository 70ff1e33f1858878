"""The closing section: how much was really judged, and what became of it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from trainguard.core.settings import Settings
from trainguard.report.text import render_rows

# In the order in which they are counted out.
OUTCOMES: Final = (
    "passed",
    "excused",
    "known",
    "broken",
    "stale",
    "unobservable",
    "skipped",
    "error",
)
_WORDS: Final = {"stale": "with a stale excuse", "error": "in error"}
_MOST_NOTES: Final = 20
_MOST_REASONS: Final = 8
_SLOWEST: Final = 3
_LONG: Final = 0.1


class SessionSummary:
    """What the reports of a run said, added up; the same with and without workers."""

    def __init__(self) -> None:
        self.judged: dict[str, list[dict[str, Any]]] = {}  # of each item
        self.collected: set[str] = set()
        self.uncollected: set[str] = set()
        self.ran: set[str] = set()
        self.empty: set[str] = set()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was told of all items; an item that ran again counts as it ended."""
        return [entry for own in self.judged.values() for entry in own]

    @property
    def well(self) -> bool:
        """Say whether something was judged, and all of it passed or is excused."""
        outcomes = {entry["outcome"] for entry in self.entries}
        return bool(self.ran) and outcomes <= {"passed", "excused", "known", "skipped"}

    def add(self, nodeid: str, entries: Iterable[dict[str, Any]], outcome: str, why: str) -> None:
        """Take in one report; its own outcome stands where nothing was judged."""
        self.collected.add(nodeid)
        if outcome != "skipped":
            self.ran.add(nodeid)
        self.judged[nodeid] = [{"outcome": outcome, "why": why, **entry} for entry in entries]

    def text(self, settings: Settings) -> str:
        """Return the whole section, in lines of at most 100 columns."""
        if not self.collected and not self.empty:
            globs = ", ".join(settings.files)
            if self.uncollected:
                files = ", ".join(sorted(self.uncollected)[:_SLOWEST])
                return f"no subject was found: {files} could not be collected"
            return f"no subject was found: none in a test module, and no file matches {globs}"
        rows = [
            *(("skipped", text) for text in self._list_skips()),
            *(("note", text) for text in self._notes()),
            *(("empty", text) for text in self._empty()),
            *(("slowest", text) for text in self._slowest()),
        ]
        return render_rows([self._describe_outcomes(), self._describe_exploration()], rows)

    def _describe_outcomes(self) -> str:
        """Count subjects, invariants, what became of them, and what never ran."""
        subjects = len({entry["subject"] for entry in self.entries})
        counts = Counter(entry["outcome"] for entry in self.entries)
        told = [f"{counts[o]} {_WORDS.get(o, o)}" for o in OUTCOMES if counts[o] or o == "passed"]
        judged = f"{_plural(subjects, 'subject')}, {_plural(len(self.entries), 'invariant')}"
        return f"{judged}: {', '.join(told)}"

    def _describe_exploration(self) -> str:
        """Count what ran, and the points, of each observation once."""
        points: dict[tuple[str, str], int] = {}
        for entry in self.entries:
            key = (entry["subject"], entry["observed"])
            points[key] = max(points.get(key, 0), entry.get("points", 0))
        devices = sorted({e["device"] for e in self.entries if e["device"] and e.get("points")})
        seconds = sum(entry.get("seconds", 0.0) for entry in self.entries)
        return (
            f"{len(self.ran)} of {_plural(len(self.collected), 'item')} ran,"
            f" {sum(points.values()):,} points explored"
            f"{' on ' + ', '.join(devices) if devices else ''} in {seconds:.1f} s"
        )

    def _list_skips(self) -> list[str]:
        """Return the commonest reasons for skipping with their counts; pytest's -rs has all."""
        reasons = Counter(e.get("why", "") for e in self.entries if e["outcome"] == "skipped")
        told = [f"{count}: {reason}" for reason, count in reasons.most_common(_MOST_REASONS)]
        more = len(reasons) - len(told)
        return [*told, *([f"... for {more} more reasons, see -rs"] if more > 0 else [])]

    def _notes(self) -> list[str]:
        """Return the notes, each once; a count stands for what is too much."""
        notes = list(dict.fromkeys(n for entry in self.entries for n in entry.get("notes", ())))
        more = len(notes) - _MOST_NOTES
        return [*notes[:_MOST_NOTES], *([f"... and {more} more"] if more > 0 else [])]

    def _empty(self) -> list[str]:
        """Name the subjects of which the settings leave nothing to judge."""
        names = sorted(self.empty)
        listed = ", ".join(names[:_SLOWEST]) + (" ..." if len(names) > _SLOWEST else "")
        return [f"{_plural(len(names), 'subject')} without an item: {listed}"] if names else []

    def _slowest(self) -> list[str]:
        """Name the subjects that took longest, where any took long."""
        seconds: Counter[str] = Counter()
        for entry in self.entries:
            seconds[entry["subject"]] += entry.get("seconds", 0.0)
        slow = [f"{name} {s:.1f} s" for name, s in seconds.most_common(_SLOWEST) if s >= _LONG]
        return [", ".join(slow)] if slow else []


def _plural(count: int, word: str) -> str:
    """Return a count with its word: `1 item`, `2 items`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
