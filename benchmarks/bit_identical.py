"""
Whether programs compute under `trainguard run` what they compute without, to the last bit.

Each program is run twice in forked children of one process: as it is, and under the command. After
each step of an optimizer a number is taken of all parameters with their gradients, of what the
optimizer keeps of them, of the buffers of all modules and of the random streams; where there are no
such steps, of what is printed. Programs: the healthy trainings of `fixtures/`, and
those of `tests/frameworks`; words on the command line choose among them. One that differs is run
once more as it is: what two plain runs do not agree on says nothing about the command.

`python -m benchmarks.bit_identical [WORD...]`
"""

import os
import pickle
import random
import runpy
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch._dynamo
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.report import conditions, row
from trainguard.command.cli import app
from trainguard.observe.tools.isolation import seed_everything

ROOT = Path(__file__).parents[1]
PLACES = ("fixtures/healthy/loop/guard_*.py", "tests/frameworks/scripts/*.py")
NEEDS = {"keras_fit": "keras"}  # packages that are in no extra of ours
LAUNCHED = ("replicas", "shards")  # by torchrun alone
PATIENCE = 300  # seconds for a program
_MOST = 100_000  # numbers of steps that are kept


def programs(words: list[str]) -> list[Path]:
    """Return the programs that can be run by themselves, and have one of the words in the name."""
    files = sorted(file for place in PLACES for file in ROOT.glob(place))
    mains = [f for f in files if "__main__" in f.read_text("utf-8") or f.parent.name == "scripts"]
    missing = [stem for stem, package in NEEDS.items() if find_spec(package) is None]
    mains = [file for file in mains if file.stem not in (*LAUNCHED, *missing)]
    return [file for file in mains if not words or any(word in file.stem for word in words)]


def watch_steps(told: list[int]) -> None:
    """Take down a number after each step of an optimizer."""
    buffered: list[weakref.ref[torch.nn.Module]] = []
    register_module_buffer_registration_hook(lambda m, *_: buffered.append(weakref.ref(m)))

    def after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Take the number of all that training goes on from."""
        number = crc32(repr(random.getstate()).encode())
        number = crc32(repr(np.random.get_state()).encode(), number)
        number = crc32(torch.get_rng_state().numpy().tobytes(), number)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                number = _add(number, parameter)
                number = _add(number, parameter.grad)
                for name, kept in optimizer.state.get(parameter, {}).items():
                    number = _add(crc32(name.encode(), number), kept)
        for module in {id(m): m for ref in buffered if (m := ref()) is not None}.values():
            for buffer in module.buffers(recurse=False):
                number = _add(number, buffer)
        if len(told) < _MOST:
            told.append(number)

    register_optimizer_step_post_hook(after_step)


def _add(number: int, value: Any) -> int:
    """Add the bits of a tensor, or what else an optimizer keeps, to a number."""
    if not isinstance(value, torch.Tensor):
        return crc32(repr(value).encode(), number) if isinstance(value, int | float) else number
    plain = value.detach()
    plain = plain.to_local() if hasattr(plain, "to_local") else plain
    plain = plain.to_dense() if plain.is_sparse else plain
    data = plain.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return crc32(data, number)


def run_apart(work: Callable[[], object], folder: str) -> tuple[list[int], str]:
    """Return the numbers of the steps that are made in a child, and what it prints."""
    result = Path(folder) / "result"
    result.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        _be_the_child(work, folder, result)
    os.waitpid(child, 0)
    return pickle.loads(result.read_bytes()) if result.exists() else ([], "it died")


def _be_the_child(work: Callable[[], object], folder: str, result: Path) -> None:
    """Run what is to be run, write down what came of it, and end."""
    signal.alarm(PATIENCE)
    out = Path(folder) / "out"
    nowhere = os.open(os.devnull, os.O_RDWR)
    opened = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream, target in enumerate((nowhere, opened, nowhere)):
        os.dup2(target, stream)
    told: list[int] = []
    watch_steps(told)
    seed_everything(0)  # Python seeds its own generator anew in a child
    owner = os.getpid()
    try:
        work()
    except BaseException as error:  # noqa: BLE001 that it ends so is part of what it does
        if not isinstance(error, SystemExit):
            print(type(error).__name__, error)
    if os.getpid() != owner:
        os._exit(0)
    sys.stdout.flush()
    result.write_bytes(pickle.dumps((told, out.read_text("utf-8", errors="replace"))))
    os._exit(0)


def compare(program: Path) -> tuple[str, bool]:
    """Return where a program differs under the command, or nothing; and whether it can repeat."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path[0] = str(program.parent)
        sys.argv = [str(program)]
        words = ["run", str(program)]
        alone = _run_alone(program, folder)
        difference = _differ(alone, run_apart(lambda: app(words), folder))
        repeatable = not difference or not _differ(alone, _run_alone(program, folder))
        os.chdir(ROOT)
    return difference, repeatable


def _run_alone(program: Path, folder: str) -> tuple[list[int], str]:
    """Return what comes of a program as it is."""
    return run_apart(lambda: runpy.run_path(str(program), run_name="__main__"), folder)


def _differ(alone: tuple[list[int], str], watched: tuple[list[int], str]) -> str:
    """Return where two runs differ, or nothing."""
    (steps, printed), (seen, told) = alone, watched
    if not steps:
        missing = [line for line in printed.splitlines() if line not in told]
        return f"it made no step; printed alone: {missing[0]!r}" if missing else ""
    if len(seen) != len(steps):
        return f"{len(seen)} instead of {len(steps)} steps"
    different = [i for i, (a, b) in enumerate(zip(steps, seen, strict=True)) if a != b]
    return f"another value after step {different[0]} of {len(steps)}" if different else ""


def main() -> None:
    """Print program by program, and the total."""
    torch.set_num_threads(1)
    print(conditions())
    identical, among = 0, 0
    for program in programs(sys.argv[1:]):
        difference, repeatable = compare(program)
        identical, among = identical + (not difference), among + repeatable
        told = (
            difference if repeatable else f"not counted, two runs without it differ: {difference}"
        )
        row(f"{program.parent.parent.name}/{program.stem}", told or "identical")
        sys.stdout.flush()
    row("identical / all", f"{identical} / {among}")


if __name__ == "__main__":
    main()
