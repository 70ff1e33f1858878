"""Observe a declared script: `trainguard run` records it in a process of its own."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trainguard.event import Event
from trainguard.fault import SubjectError
from trainguard.loop import Script
from trainguard.settings import Settings
from trainguard.trace import Trace

_USAGE, _FAILED, _OURS = 2, 3, 4  # exit codes of `trainguard run`
_MOST = 40  # lines of stderr that are shown
_TAIL = 16_384  # bytes of it that are looked at


class Stderr(Exception):
    """Carries the end of what a script wrote to stderr, where a report shows what it raised."""

    # So that it is shown as `Stderr: ...`, without the module that nobody asked for.
    __module__ = "builtins"


def observe_script(
    script: Script, _settings: Settings, steps: int | None = None, probe: bool | None = None
) -> Trace[Event]:
    """
    Run a script under the recorder in a process of its own, and return what was recorded.

    steps, probe: as declared, where they are not given. Raises SubjectError where there is no such
    script, where it fails, takes too long or makes no training step.
    """
    wanted = script.steps if steps is None else steps
    probed = script.probe if probe is None else probe
    folder, path = script_folder(script), script_path(script)
    with TemporaryDirectory(prefix="trainguard-") as scratch:
        file, errors = Path(scratch, "trace"), Path(scratch, "stderr")
        command = [
            *(sys.executable, "-m", "trainguard", "run", "--record-only", "--trace", str(file)),
            *(["--steps", str(wanted)] if wanted is not None else []),
            *([] if probed else ["--no-probes"]),
            *_promised(script),
            *("--", str(path), *script.args),
        ]
        code = _run(command, folder, errors, script.timeout)
        if code:
            raise _fault(code, script, errors)
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
    """Return where the script is to run; found as the script itself is."""
    if script.directory is None:
        return Path.cwd()
    for folder in (Path(script.file).parent, Path.cwd()):
        if (folder / script.directory).is_dir():
            return (folder / script.directory).absolute()
    raise SubjectError(f"there is no folder {str(script.directory)!r} to run it in")


def _promised(script: Script) -> list[str]:
    """Return the options that hand the promises on, for the probes that look at them."""
    numbers = {"batch": script.batch, "falls": script.falls, "average": script.average}
    options = [f"--{name}={value!r}" for name, value in numbers.items() if value is not None]
    options += [f"--frozen={glob}" for glob in script.frozen]
    return options + [f"--trainable={glob}" for glob in script.trainable]


def _run(command: Sequence[str], folder: Path, errors: Path, seconds: float) -> int:
    """Run a command to its end, and take all that it started with it if it has none."""
    with errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 to run it is what was declared
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SubjectError(
                f"it was still running after {seconds:g} seconds",
                "make it return, end it with steps=<count>, or give it more with timeout=<seconds>",
            ) from None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its workers, where it has not ended by itself."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _fault(code: int, script: Script, errors: Path) -> SubjectError:
    """Say what kept a script from being recorded, with the end of its stderr underneath."""
    with errors.open("rb") as stderr:
        stderr.seek(max(0, errors.stat().st_size - _TAIL))
        lines = stderr.read().decode(errors="replace").rstrip().splitlines()
    if code == _OURS:
        raise RuntimeError("\n".join(lines))
    call = shlex.join(["python", str(script.path), *script.args])
    last = lines[-1] if lines else "it says nothing"
    if code == _USAGE and lines:
        sentence, *remedy = lines[-2:]
        return SubjectError(sentence.rstrip("."), " ".join(remedy), call)
    if code == _FAILED:
        fault = SubjectError(f"it failed: {last}", "make it run by itself first", call)
    elif code < 0:
        fault = SubjectError(f"it was ended by {signal.Signals(-code).name}", call=call)
    else:
        fault = SubjectError(f"it ended with exit code {code}: {last}", call=call)
    fault.__cause__ = Stderr("\n".join(["", *lines[-_MOST:]]))
    return fault
