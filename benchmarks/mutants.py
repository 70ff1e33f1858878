"""
Which mistakes `trainguard run` notices: planted by all operators in healthy trainings.

Each program is copied to a folder of its own and run there as it is, twice; mutants are drawn so
that each operator has its turn, until the minutes are over. Programs: the healthy loops of
`fixtures/`, or the scripts of the folders given. Two shares are told: of all mutants that change
anything, and of those that do harm, whose models are worse than those of other seeds (`harm.py`).

`python -m benchmarks.mutants [--minutes N] [--programs N] [--seed N] [FOLDER...]`
"""

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harm import Yardstick
from benchmarks.report import conditions, row
from trainguard.command.mutate.command import (
    MutateRequest,
    Work,
    judge_trial,
    prepare,
    try_mutant,
)
from trainguard.command.mutate.mistakes.operator import Mutant, mutants, operators
from trainguard.command.mutate.project import Project
from trainguard.command.mutate.result import Result
from trainguard.core.errors import DeclarationError

HEALTHY = Path(__file__).parents[1] / "fixtures" / "healthy" / "loop"
STEPS = 150  # of each run, at most: most programs of the corpus come to their end


def programs(folders: list[str], count: int, seed: int) -> list[Path]:
    """Return so many of the programs that can be run by themselves."""
    places = [Path(folder) for folder in folders] or [HEALTHY]
    files = sorted(file for place in places for file in place.rglob("*.py"))
    mains = [f for f in files if folders or "__main__" in f.read_text("utf-8")]
    return sorted(random.Random(seed).sample(mains, min(count, len(mains))))


def draw(files: list[Path], seed: int) -> list[tuple[Path, Mutant]]:
    """Return the mutants of all programs, the operators in turns."""
    by_operator: dict[str, list[tuple[Path, Mutant]]] = {}
    for file in files:
        for mutant in mutants(file.read_bytes(), "train.py", operators()):
            by_operator.setdefault(mutant.operator.key, []).append((file, mutant))
    drawn = random.Random(seed)
    for some in by_operator.values():
        drawn.shuffle(some)
    longest = max(map(len, by_operator.values()))
    return [some[n] for n in range(longest) for some in by_operator.values() if n < len(some)]


def prepare_program(file: Path, scratch: Path) -> Work | None:
    """Run a program as it is; nothing where it cannot be mutated, which is printed."""
    root = scratch / f"{file.parent.name}-{file.stem}"
    root.mkdir()
    shutil.copy(file, root / "train.py")
    order = MutateRequest(
        project=Project(root=root, script="train.py"), steps=STEPS, budget=300, fresh=True
    )
    try:
        return prepare(order)
    except DeclarationError as error:
        print(f"{root.name}: {error}", flush=True)
        return None


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a mutant, and whether it does harm."""

    result: Result
    harms: bool


def judge(files: list[Path], minutes: float, seed: int) -> tuple[list[Judged], dict[Path, Work]]:
    """Return what became of the mutants that there was time for, and the programs as they are."""
    until, judged = time.monotonic() + 60 * minutes, list[Judged]()
    made: dict[Path, Work | None] = {}
    yardsticks: dict[Path, Yardstick] = {}
    with tempfile.TemporaryDirectory(prefix="trainguard-") as scratch:
        for file, mutant in draw(files, seed):
            if time.monotonic() > until:
                break
            if file not in made:
                made[file] = prepare_program(file, Path(scratch))
            work = made[file]
            if work is not None:
                yardstick = yardsticks.setdefault(file, Yardstick(work))
                judged.append(judge_one(yardstick, mutant))
                tell(judged[-1], file.stem)
    return judged, {file: work for file, work in made.items() if work is not None}


def judge_one(yardstick: Yardstick, mutant: Mutant) -> Judged:
    """Return what becomes of one mutant."""
    trial = try_mutant(yardstick.work, mutant)
    result = judge_trial(yardstick.work, mutant, trial)
    told = result.outcome in ("killed", "survived")
    return Judged(result, told and yardstick.does_harm(mutant, trial))


def tell(judged: Judged, program: str) -> None:
    """Print a mutant that nothing notices."""
    found = judged.result
    if found.outcome == "survived":
        notes = f", noted: {', '.join(found.noted)}" if found.noted else ""
        harm = "does harm" if judged.harms else "no worse than another seed"
        print(f"survived: {found.operator} {program}:{found.line} ({harm}{notes})", flush=True)


def share(judged: list[Judged], outcome: str) -> str:
    """Return how many of some mutants that change anything have this outcome."""
    told = [j.result for j in judged if j.result.outcome in ("killed", "survived")]
    found = sum(
        result.outcome == "killed" if outcome == "killed" else bool(result.run or result.noted)
        for result in told
    )
    return f"{found} / {len(told)}, {found / max(1, len(told)):.0%}"


def report(judged: list[Judged], works: dict[Path, Work]) -> None:
    """Print the tables."""
    outcomes = Counter(j.result.outcome for j in judged)
    harmful = [j for j in judged if j.harms]
    print(conditions())
    print("| figure | measured |\n|---|---|")
    row("programs, mutants that were run", f"{len(works)}, {len(judged)}")
    row(
        "that fail or hang by themselves; that change nothing",
        f"{outcomes['crashed']}; {outcomes['equivalent']}",
    )
    row("noticed by `run` alone, of the others", share(judged, "killed"))
    row("noticed, of those that do harm (at least 80 %)", share(harmful, "killed"))
    row("noticed or noted, of the others; of those that do harm",
        f"{share(judged, 'noted')}; {share(harmful, 'noted')}")  # fmt: skip
    false = {
        file.stem: sorted(work.whole.broken) for file, work in works.items() if work.whole.broken
    }
    row("false alarms of the programs as they are (0)", str(len(false)))
    tabulate(judged)
    for name, broken in false.items():
        print(f"false alarm: {name}: {', '.join(broken)}")


def tabulate(judged: list[Judged]) -> None:
    """Print what became of the mutants by operator and by invariant."""
    print(
        "\n| operator | noticed | harm, survived | noted of these | no harm, survived | no mutant |"
    )
    print("|---|---|---|---|---|---|")
    by: Counter[tuple[str, str]] = Counter()
    for each in judged:
        found = each.result
        kind = ("harm" if each.harms else "none") if found.outcome == "survived" else found.outcome
        by[found.operator, kind] += 1
        by[found.operator, "noted"] += kind == "harm" and bool(found.noted)
    for key in sorted({j.result.operator for j in judged}, key=lambda k: (-by[k, "harm"], k)):
        dropped = by[key, "crashed"] + by[key, "equivalent"]
        figures = [by[key, kind] for kind in ("killed", "harm", "noted", "none")]
        print(f"| {key} | {' | '.join(map(str, figures))} | {dropped} |")
    print("\n| invariant | noticed | noted |\n|---|---|---|")
    run = Counter(name for j in judged for name in j.result.run)
    noted = Counter(name for j in judged for name in j.result.noted)
    for name, _ in (run + noted).most_common():
        print(f"| {name} | {run[name]} | {noted[name]} |")


def main() -> None:
    """Read the command line, run the mutants, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folders", nargs="*")
    given = parser.parse_args()
    files = programs(given.folders, given.programs, given.seed)
    report(*judge(files, given.minutes, given.seed))


if __name__ == "__main__":
    main()
