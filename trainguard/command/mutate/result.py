"""What became of a mutant, as plain values: for the report, and for a run that is resumed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trainguard.command.mutate.mistakes.operator import Mutant

OUTCOMES: Final = ("killed", "survived", "equivalent", "crashed", "left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    What became of one mutant.

    outcome: killed, survived, equivalent (nothing differs), crashed (by itself, or it hangs), or
        left, where there was no time.
    run: the invariants of `trainguard run` that notice it; noted: those that only make a note.
    guards: the team's guards that notice it. proposal: what would notice a survivor. end: what the
        losses of each optimizer come to, where that says whether a survivor does harm.
    """

    key: str
    operator: str
    title: str
    path: str
    line: int
    diff: str
    outcome: str
    run: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    proposal: str = ""
    end: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """
    All that became of the mutants of a training.

    seconds: how long the training takes as it is. broken: what `trainguard run` finds in it as it
    is, which can notice no mutant; failing: the guards that fail as it is. applied, of: how many
    operators apply. unread: what could not be read. compared: the keys of the survivors
    whose losses were held against those from other seeds; harmless: of those that end no worse.
    """

    script: str
    results: tuple[Result, ...]
    seconds: float
    broken: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    guards: int = 0
    applied: int = 0
    of: int = 0
    unread: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()

    def of_outcome(self, outcome: str) -> list[Result]:
        """Return the mutants of which this became."""
        return [result for result in self.results if result.outcome == outcome]


def result_of(mutant: Mutant, outcome: str, **more: Any) -> Result:
    """Return what became of a mutant."""
    return Result(
        key=mutant.key,
        operator=mutant.operator.key,
        title=mutant.operator.title,
        path=mutant.path,
        line=mutant.line,
        diff=mutant.diff,
        outcome=outcome,
        **more,
    )


class Ledger:
    """The results so far, in a file that an interrupted run leaves and the next one reads."""

    def __init__(self, file: Path) -> None:
        """Read what is there; a line that was cut off is as if it were not."""
        self.file = file
        self.results: dict[str, Result] = {}
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for line in text.splitlines():
            row = _parse(line)
            if row is not None:
                self.results[row.key] = row

    def add(self, result: Result) -> None:
        """Keep a result."""
        self.results[result.key] = result
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _parse(line: str) -> Result | None:
    """Return the result in a line, or nothing where there is none of this version."""
    try:
        row: dict[str, Any] = json.loads(line)
        return Result(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        return None


def by_turns(mutants: Sequence[Mutant]) -> list[Mutant]:
    """
    Return mutants with the first of each operator first, then the second of each, and so on.

    So that what there is time for says most: ten operators once, rather than one ten times.
    """
    turns: dict[str, int] = {}
    ranked: list[tuple[int, int, Mutant]] = []
    for mutant in mutants:
        turn = turns[mutant.operator.key] = turns.get(mutant.operator.key, -1) + 1
        ranked.append((turn, len(ranked), mutant))
    return [mutant for _, _, mutant in sorted(ranked, key=lambda each: each[:2])]
