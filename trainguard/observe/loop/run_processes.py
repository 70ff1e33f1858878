"""
Observe a script, or a function that trains, in a process of its own: `train.py`, `file.py::loop`.

So that its memory is its own, and nothing of one run is left for the next. Run as a module, this
file is the child that trains a function: it imports the file, seeds, records, and writes the trace.
"""

import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError, did_you_mean, is_ours
from trainguard.core.settings import Settings
from trainguard.events.base import Event, Plain
from trainguard.events.trace import Trace
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.child_process import FAILED, USAGE, failure, run_to_end
from trainguard.observe.tools.isolation import seed_everything
from trainguard.subjects.loop import Loop, Run, Script

_RECORD = ("-m", "trainguard", "run", "--record-only", "--trace")
_LAUNCHER = ("-m", "trainguard.observe.tools.launcher")


def observe_apart(
    address: str, seed: int = 0, steps: int | None = None, seconds: float = 600.0
) -> Trace[Event]:
    """
    Run the loop at `file.py::name` under the recorder in a new process, seeded; return its trace.

    steps: as declared, where it is not given. Raises SubjectError where there is no such loop,
    where it fails, takes too long or makes no training step.
    """
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        file, errors = Path(scratch, "trace"), Path(scratch, "stderr")
        command = [
            *(
                sys.executable,
                "-m",
                "trainguard.observe.loop.run_processes",
                address,
                str(file),
                str(seed),
            ),
            *([] if steps is None else ["--steps", str(steps)]),
        ]
        code = run_to_end(command, Path.cwd(), errors, seconds)
        if code:
            raise failure(code, address, errors)
        return Trace.from_text(file.read_text(encoding="utf-8"))


def main(words: Sequence[str]) -> int:
    """Be the child: record the loop at an address, write its trace, and return the exit code."""
    parser = ArgumentParser(prog="trainguard.observe.loop.run_processes")
    parser.add_argument("address")
    parser.add_argument("trace", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args(words)
    try:
        run = find_run(given.address)
        trace = record_run(run, given.seed, given.steps or run.steps)
    except DeclarationError as error:
        return _fail(str(error), USAGE)
    except SubjectError as fault:
        cause = fault.__cause__
        if cause is None:
            return _fail(f"{fault.sentence}.\n{fault.remedy}", USAGE)
        return _fail("".join(format_exception(cause)).rstrip(), FAILED)
    given.trace.write_text(trace.to_text(), encoding="utf-8")
    return 0


def find_run(address: str) -> Run:
    """Import the file of an address as pytest would, and return the run that is declared there."""
    return as_run(find_declared(address), address)


def find_declared(address: str) -> Any:
    """Import the file of an address as pytest would, and return what has the name in it."""
    path, _, name = address.rpartition("::")
    file = Path(path).resolve()
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    sys.path[:0] = [str(root)]
    try:
        module = import_module(".".join(file.relative_to(root).with_suffix("").parts))
    except Exception as error:
        raise SubjectError(f"{path} cannot be imported") from error
    value = getattr(module, name, None)
    if value is None:
        known = [n for n, v in vars(module).items() if isinstance(v, Run)]
        raise DeclarationError(f"{path} has no {name!r}.{did_you_mean(name, known)}")
    return value


def as_run(value: Any, address: str) -> Run:
    """Return what stands at an address as a run; a plain function that trains is one too."""
    if isinstance(value, Loop | Script):
        return value
    if not callable(value) or isinstance(value, type):
        raise DeclarationError(
            f"{address} is {value!r:.60}, which does not train. Give a tg.Loop, a tg.Script or a"
            " function that trains."
        )
    return Loop(value)


def record_run(
    run: Run,
    seed: int,
    steps: int | None,
    explain: Callable[[Exception], Mapping[str, Plain]] | None = None,
) -> Trace[Event]:
    """
    Record a run in this process, seeded and otherwise as a program would have it.

    explain: returns what the trace of a run is to say that failed so, or nothing: then it raises.
    """
    if isinstance(run, Script):
        return observe_script(run, Settings(), steps, probe=False)
    assert isinstance(run, Loop)
    seed_everything(seed)
    recorder = Recorder(run.name, steps=steps, probe=False, promises=run.promises)
    try:
        with recorder, _leaving():
            run.train(**dict(run.arguments))
    except Exception as error:
        if is_ours(error):
            raise
        if explain is not None and (told := explain(error)):
            return replace(recorder.trace, conditions={**recorder.trace.conditions, **told})
        raise SubjectError(f"it raised after {recorder.steps} steps") from error
    if not recorder.steps:
        raise SubjectError(
            f"`{run.name}` made no training step, so that there is nothing to judge",
            "Steps in processes that it starts are not seen.",
        )
    return recorder.trace


@contextmanager
def _leaving() -> Iterator[None]:
    """Take `sys.exit()` and `sys.exit(0)` for an end like any other, as of a script."""
    try:
        yield
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def _fail(text: str, code: int) -> int:
    """Say what went wrong, and return the exit code that stands for it."""
    sys.stderr.write(f"{text}\n")
    return code


def observe_script(
    script: Script,
    _settings: Settings,
    steps: int | None = None,
    probe: bool | None = None,
    components: bool = False,
) -> Trace[Event]:
    """
    Run a script under the recorder in a process of its own, and return what was recorded.

    steps, probe: as declared, where they are not given. components: whether the trace tells of the
    losses, models and schedules that it has of its own. Raises SubjectError where there is no such
    script, where it fails, takes too long or makes no training step.
    """
    wanted = script.steps if steps is None else steps
    probed = script.probe if probe is None else probe
    options = _record_options(script, wanted, probed) + (["--components"] if components else [])
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        file, errors = Path(scratch, "trace"), Path(scratch, "stderr")
        command = [sys.executable, *_RECORD, str(file), *options, *_script_words(script)]
        code = run_to_end(command, script_folder(script), errors, script.timeout)
        if code:
            raise failure(code, _script_call(script), errors)
        return _read_trace(script, file)


def observe_in_ranks(script: Script, world: int) -> tuple[list[Trace[Event]], SubjectError | None]:
    """
    Run a script under the recorder in several processes of torchrun; return the traces they left.

    And what went wrong where they failed. Raises SubjectError where there is no such script, or
    where it takes too long.
    """
    options = _record_options(script, script.steps, probe=False)
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        file, errors = Path(scratch, "trace"), Path(scratch, "stderr")
        # Where none is named, the launcher makes a folder for logs that it does not take away.
        launcher = [*_LAUNCHER, str(world), "--standalone", f"--log-dir={scratch}/logs"]
        command = [sys.executable, *launcher, *_RECORD, str(file), *options]
        command += _script_words(script)
        code = run_to_end(command, script_folder(script), errors, script.timeout)
        files = [file, *(Path(f"{file}.rank{rank}") for rank in range(1, world))]
        traces = [_read_trace(script, each) for each in files if each.exists()]
        fault = failure(code, _script_call(script), errors) if code else None
        return traces, fault


def _record_options(script: Script, steps: int | None, probe: bool) -> list[str]:
    """Return the options of a recording of a script."""
    return [
        *(["--steps", str(steps)] if steps is not None else []),
        *([] if probe else ["--no-probes"]),
        *_promise_options(script),
    ]


def _script_words(script: Script) -> list[str]:
    """Return how a command line names a script and its arguments."""
    words = ["-m", str(script.path)] if script.module else [str(script_path(script))]
    return [*words[:-1], "--", words[-1], *script.args]


def _script_call(script: Script) -> str:
    """Return how a script is called by hand."""
    return shlex.join(
        ["python", *(["-m"] if script.module else []), str(script.path), *script.args]
    )


def _read_trace(script: Script, file: Path) -> Trace[Event]:
    """Read the trace of a script under its name."""
    trace: Trace[Event] = Trace.from_text(file.read_text(encoding="utf-8"))
    return replace(trace, subject=script.name, promises=script.promises)


def script_path(script: Script) -> Path:
    """Find the script from the folder of the guard file, then from the working directory."""
    folders = [Path(script.file).parent, Path.cwd()]
    for folder in folders:
        path = folder / script.path
        if path.is_file():
            return path.absolute()
    looked = " nor in ".join(str(folder) for folder in dict.fromkeys(folders))
    raise SubjectError(
        f"there is no script {str(script.path)!r} in {looked}",
        "give its path from the folder of the guard file, or from where pytest is started",
    )


def script_folder(script: Script) -> Path:
    """Return where the script is to run, found as the script itself is; of a module, beside it."""
    folders = (Path(script.file).parent, Path.cwd())
    if script.directory is None:
        top = str(script.path).partition(".")[0]
        beside = [f for f in folders if (f / top).is_dir() or (f / f"{top}.py").is_file()]
        return [*beside, Path.cwd()][0].absolute() if script.module else Path.cwd()
    for folder in folders:
        if (folder / script.directory).is_dir():
            return (folder / script.directory).absolute()
    raise SubjectError(f"there is no folder {str(script.directory)!r} to run it in")


def _promise_options(script: Script) -> list[str]:
    """Return the options that hand the promises on, for the probes that look at them."""
    numbers = {"batch": script.batch, "falls": script.falls, "average": script.average}
    options = [f"--{name}={value!r}" for name, value in numbers.items() if value is not None]
    options += [f"--frozen={glob}" for glob in script.frozen]
    return options + [f"--trainable={glob}" for glob in script.trainable]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
