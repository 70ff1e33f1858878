"""Observe a declared script: `trainguard run` records it in a process of its own."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.tools.child_process import failure, run_to_end
from trainguard.subjects.loop import Script


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
            *_promise_options(script),
            *("--", str(path), *script.args),
        ]
        code = run_to_end(command, folder, errors, script.timeout)
        if code:
            call = shlex.join(["python", str(script.path), *script.args])
            raise failure(code, call, errors)
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


def _promise_options(script: Script) -> list[str]:
    """Return the options that hand the promises on, for the probes that look at them."""
    numbers = {"batch": script.batch, "falls": script.falls, "average": script.average}
    options = [f"--{name}={value!r}" for name, value in numbers.items() if value is not None]
    options += [f"--frozen={glob}" for glob in script.frozen]
    return options + [f"--trainable={glob}" for glob in script.trainable]
