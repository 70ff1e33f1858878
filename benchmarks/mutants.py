"""
Which mistakes `trainguard run` notices: planted by all operators in healthy trainings.

Each program is copied to a folder of its own and run there as it is, twice; mutants are drawn so
that each operator has its turn, until the minutes are over. Programs: the healthy loops of
`fixtures/`, or the scripts of the folders given.

`python -m benchmarks.mutants [--minutes N] [--programs N] [--seed N] [FOLDER...]`
"""

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.report import conditions, row
from trainguard.command.mutate.command import MutateRequest, Work, judge_mutant, prepare
from trainguard.command.mutate.mistakes.operator import Mutant, mutants, operators
from trainguard.command.mutate.project import Project
from trainguard.command.mutate.result import Result
from trainguard.core.errors import DeclarationError

HEALTHY = Path(__file__).parents[1] / "fixtures" / "healthy" / "loop"
STEPS = 100  # of each run, at most


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


def judge(files: list[Path], minutes: float, seed: int) -> tuple[list[Result], dict[Path, Work]]:
    """Return what became of the mutants that there was time for, and the programs as they are."""
    until, results, made = (
        time.monotonic() + 60 * minutes,
        list[Result](),
        dict[Path, Work | None](),
    )
    with tempfile.TemporaryDirectory(prefix="trainguard-") as scratch:
        for file, mutant in draw(files, seed):
            if time.monotonic() > until:
                break
            if file not in made:
                made[file] = prepare_program(file, Path(scratch))
            work = made[file]
            if work is not None:
                found = judge_mutant(work, mutant)
                results.append(found)
                if found.outcome == "survived":
                    notes = f" (noted: {', '.join(found.noted)})" if found.noted else ""
                    print(f"survived: {found.operator} {file.stem}:{found.line}{notes}", flush=True)
    return results, {file: work for file, work in made.items() if work is not None}


def report(results: list[Result], works: dict[Path, Work]) -> None:
    """Print the tables."""
    outcomes = Counter(result.outcome for result in results)
    told = outcomes["killed"] + outcomes["survived"]
    print(conditions())
    print("| figure | measured |\n|---|---|")
    row("programs, mutants that were run", f"{len(works)}, {len(results)}")
    row(
        "that fail or hang by themselves; that change nothing",
        f"{outcomes['crashed']}; {outcomes['equivalent']}",
    )
    share = outcomes["killed"] / max(1, told)
    row(
        "noticed by `run` alone, of the others (at least 80 %)",
        f"{outcomes['killed']} / {told}, {share:.0%}",
    )
    noted = sum(1 for r in results if r.outcome == "survived" and r.noted)
    row("of those that survived, with a note", f"{noted} / {outcomes['survived']}")
    false = {
        file.stem: sorted(work.whole.broken) for file, work in works.items() if work.whole.broken
    }
    row("false alarms of the programs as they are (0)", str(len(false)))
    print("\n| operator | noticed | survived | no mutant |\n|---|---|---|---|")
    by = Counter((r.operator, r.outcome) for r in results)
    for key in sorted({r.operator for r in results}, key=lambda k: (-by[k, "survived"], k)):
        dropped = by[key, "crashed"] + by[key, "equivalent"]
        print(f"| {key} | {by[key, 'killed']} | {by[key, 'survived']} | {dropped} |")
    print("\n| invariant | mutants |\n|---|---|")
    for name, number in Counter(name for r in results for name in r.run).most_common():
        row(name, str(number))
    for name, broken in false.items():
        print(f"false alarm: {name}: {', '.join(broken)}")


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
