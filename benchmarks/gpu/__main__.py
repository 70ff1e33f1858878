"""Measures all parts, and writes them down."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterator
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.gpu.components import agreement, points
from benchmarks.gpu.machine import Machine, Row
from benchmarks.gpu.peaks import measures, peaks, predictions
from benchmarks.gpu.processes import rank, ranks, tests
from benchmarks.gpu.recording import recorder
from benchmarks.gpu.repeats import curves

HERE = Path(__file__).parents[1]
LIMIT = 26.0  # minutes after which no part goes on: a machine is lent for 30


Part = Callable[[Machine], Iterator[Row]]
Figures = dict[str, Any]  # the conditions, and by part the dates and the rows
PARTS: tuple[Part, ...] = (
    recorder,
    points,
    peaks,
    measures,
    curves,
    ranks,
    tests,
    agreement,  # the longest, so that what is cut off for time is some of the fixtures
)


def measure(
    machine: Machine, folder: Path, names: Collection[str], minutes: float = LIMIT
) -> dict[str, list[Row]]:
    """
    Make the named parts; what fails is told in a row of its own, and the next one goes on.

    Parts that were made before, under the same conditions, stay on the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures, last = _begin(machine, folder), monotonic() + 60 * minutes
    for part in (part for part in PARTS if part.__name__ in names):
        started = monotonic()
        rows = figures["parts"][part.__name__] = []
        figures["dates"][part.__name__] = date.today().isoformat()
        for row in _rows(part, machine, last):
            rows.append(row)
            print(part.__name__, row, flush=True)
        print(f"{part.__name__}: {monotonic() - started:.0f} s", flush=True)
        write(figures, folder)  # now: the machine may be taken away
    return figures["parts"]


def _rows(part: Part, machine: Machine, last: float) -> Iterator[Row]:
    """Yield the rows of a part, the last of them why there are no more where it was not made."""
    try:
        if monotonic() > last:
            yield {"left out": "there was no time for it"}
            return
        for row in part(machine):
            yield row
            if monotonic() > last:
                yield {"left out": "there was no time for what comes after"}
                return
    except Exception as error:  # noqa: BLE001 the others are worth having
        yield {"failed": f"{type(error).__name__}: {error}"[:600]}


def _begin(machine: Machine, folder: Path) -> Figures:
    """Return the figures of an earlier call, where it was made under the same conditions."""
    device = str(machine.module.get_device_name())
    now = {"device": device, "torch": torch.__version__, "simulated": machine.simulated}
    file = folder / "GPU.json"
    raw = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    same = raw.get("conditions") == now
    return raw if same else {"conditions": now, "dates": {}, "parts": {}}


def write(figures: Figures, folder: Path) -> None:
    """Write the page and the raw figures."""
    (folder / "GPU.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    conditions, dates, found = figures["conditions"], figures["dates"], figures["parts"]
    note = "A dry run on a simulated accelerator: these figures mean nothing."
    lines = ["# On an accelerator", "", *([note, ""] if conditions["simulated"] else [])]
    lines += [f"{conditions['device']}, torch {conditions['torch']}", ""]
    for part in (part for part in PARTS if part.__name__ in found):
        name, title = part.__name__, (part.__doc__ or "").strip().splitlines()[0]
        lines += [f"## {name}", "", f"{title} Made on {dates[name]}.", "", *_table(found[name]), ""]
    (folder / "GPU.md").write_text("\n".join(lines), encoding="utf-8")


def _table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of a table of rows, which may have different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        cells = (str(row.get(name, "")).replace("|", "/") for name in columns)
        yield f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


def main() -> None:
    """Measure what there is, or everything small on a simulated accelerator."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--predictions"]:
        return predictions(int(sys.argv[2]))
    if sys.argv[1:] == ["--rank"]:
        return rank()
    parser = ArgumentParser(prog="benchmarks.gpu", description=main.__doc__)
    parser.add_argument("--simulated", action="store_true", help="a dry run; needs --into")
    parser.add_argument("--into", type=Path, help="the folder for GPU.md and GPU.json")
    parser.add_argument("--minutes", type=float, default=LIMIT, help="after which no part goes on")
    names = [part.__name__ for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(names)}")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(names):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if asked.simulated and not asked.into:
        parser.error("a dry run writes figures that mean nothing: say --into which folder")
    if not asked.simulated and not torch.cuda.is_available():
        parser.error("there is no CUDA here: --simulated --into FOLDER tries the command out")
    if asked.simulated:
        from tests.simulated.device import CannotBeBuilt, register

        try:
            register()
        except CannotBeBuilt as error:
            parser.error(str(error))
    machine = Machine("sim" if asked.simulated else "cuda", asked.simulated)
    measure(machine, asked.into or HERE, asked.parts or names, asked.minutes)
    return None


if __name__ == "__main__":
    main()
