"""Measures all parts, and writes them down."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import torch

from benchmarks.gpu.components import agreement, points
from benchmarks.gpu.machine import Machine, Row
from benchmarks.gpu.peaks import measures, peaks, predictions
from benchmarks.gpu.processes import rank, ranks, tests
from benchmarks.gpu.recording import recorder
from benchmarks.gpu.repeats import curves

HERE = Path(__file__).parents[1]
LIMIT = 26 * 60.0  # seconds after which no part goes on: a machine is lent for 30 minutes


Part = Callable[[Machine], Iterator[Row]]
PARTS: tuple[Part, ...] = (
    agreement,
    recorder,
    points,
    peaks,
    measures,
    curves,
    ranks,
    tests,
)


def measure(machine: Machine, folder: Path) -> dict[str, list[Row]]:
    """Make all parts; what fails is told in a row of its own, and the next one goes on."""
    found = dict[str, list[Row]]()
    last = monotonic() + LIMIT
    for part in PARTS:
        started, rows = monotonic(), found.setdefault(part.__name__, [])
        for row in _rows(part, machine, last):
            rows.append(row)
            print(part.__name__, row, flush=True)
        print(f"{part.__name__}: {monotonic() - started:.0f} s", flush=True)
        write(found, machine, folder)  # now: the machine may be taken away
    return found


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


def write(found: dict[str, list[Row]], machine: Machine, folder: Path) -> None:
    """Write the page and the raw figures."""
    conditions = {"device": str(machine.module.get_device_name()), "torch": torch.__version__}
    raw = {"conditions": conditions | {"simulated": machine.simulated}, "parts": found}
    (folder / "GPU.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    note = (
        ["A dry run on a simulated accelerator: these figures mean nothing.", ""]
        if machine.simulated
        else []
    )
    lines = [
        "# On an accelerator",
        "",
        *note,
        ", ".join(f"{k} {v}" for k, v in conditions.items()),
        "",
    ]
    for part in (part for part in PARTS if part.__name__ in found):
        title = (part.__doc__ or "").strip().splitlines()[0]
        lines += [f"## {part.__name__}", "", title, "", *_table(found[part.__name__]), ""]
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
    words = sys.argv[1:]
    if words[:1] == ["--predictions"]:
        predictions(int(words[1]))
    elif words == ["--rank"]:
        rank()
    elif words[:1] == ["--simulated"]:
        from tests.simulated.device import register

        register()
        machine = Machine("sim", simulated=True)
        measure(machine, Path(words[1]))
    elif torch.cuda.is_available():
        machine = Machine("cuda")
        measure(machine, HERE)
    else:
        print("there is no CUDA here: --simulated FOLDER tries the command out")


if __name__ == "__main__":
    main()
