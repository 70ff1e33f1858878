"""Measures all parts, and writes them down."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import torch

from benchmarks.gpu.components import agreement, points
from benchmarks.gpu.machine import Machine, Row
from benchmarks.gpu.peaks import peaks, predictions
from benchmarks.gpu.processes import rank, ranks, tests
from benchmarks.gpu.recording import recorder
from benchmarks.gpu.repeats import curves

HERE = Path(__file__).parents[1]
LIMIT = 28 * 60.0  # seconds after which no further part is begun


PARTS: tuple[Callable[[Machine], Iterator[Row]], ...] = (
    agreement,
    recorder,
    points,
    peaks,
    curves,
    ranks,
    tests,
)


def measure(machine: Machine) -> dict[str, list[Row]]:
    """Make all parts; what fails is told in a row of its own, and the next one goes on."""
    began, found = monotonic(), dict[str, list[Row]]()
    for part in PARTS:
        rows = found[part.__name__] = []
        started = monotonic()
        if started - began > LIMIT:
            rows.append({"left out": "there was no time for it"})
            continue
        try:
            for row in part(machine):
                rows.append(row)
                print(part.__name__, row, flush=True)
        except Exception as error:  # noqa: BLE001 the others are worth having
            rows.append({"failed": f"{type(error).__name__}: {error}"[:600]})
        print(f"{part.__name__}: {monotonic() - started:.0f} s", flush=True)
    return found


def write(found: dict[str, list[Row]], machine: Machine, folder: Path) -> None:
    """Write the page and the raw figures."""
    conditions = {"device": str(machine.module.get_device_name()), "torch": torch.__version__}
    raw = {"conditions": conditions | {"simulated": machine.simulated}, "parts": found}
    (folder / "GPU.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    note = ["Only simulated: these figures mean nothing.", ""] if machine.simulated else []
    lines = [
        "# On an accelerator",
        "",
        *note,
        ", ".join(f"{k} {v}" for k, v in conditions.items()),
        "",
    ]
    for part in PARTS:
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
        write(measure(machine), machine, Path(words[1]))
    elif torch.cuda.is_available():
        machine = Machine("cuda")
        write(measure(machine), machine, HERE)
    else:
        print("there is no CUDA here: --simulated FOLDER tries the command out")


if __name__ == "__main__":
    main()
