"""Execute a script or a module in this process as `python script.py` or `python -m` would."""

import builtins
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import CodeType, FrameType, ModuleType
from typing import Any

from trainguard.core.errors import DeclarationError
from trainguard.observe.loop.stopped import Stopped
from trainguard.observe.tools.user_line import place_of
from trainguard.subjects.loop import check_is_code

_AGAIN = 0.5  # seconds until the next alarm, where the first was caught or came at a bad moment
_PATIENCE = 5.0  # seconds that a deletion or an import may go on for
_DELETING = ("__del__", "_remove", "remove")  # the last two are callbacks of weak references


@dataclass(frozen=True)
class Program:
    """What is to be executed: found, read and compiled, so that only its own faults remain."""

    code: CodeType
    file: str
    argv: tuple[str, ...]
    folder: str
    spec: ModuleSpec | None = None
    loader: Any = None


def find_script(script: str, args: Sequence[str]) -> Program:
    """Read and compile a script; raises DeclarationError where there is none to run."""
    path = Path(script)
    if path.is_dir():
        raise DeclarationError(f"{script} is a folder. Give the script in it.")
    if not path.exists():
        raise DeclarationError(f"There is no script {script!r} in {Path.cwd()}.{_hint(path)}")
    check_is_code(path)
    file = os.path.join(Path.cwd(), script)  # noqa: PTH118 as __file__ is made: not a bit tidier
    try:
        code = compile(path.read_bytes(), file, "exec", dont_inherit=True)
    except OSError as error:
        raise DeclarationError(f"{script} cannot be read: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, before Python 3.12
        raise DeclarationError(f"{script} is not Python: {_syntax(error)}.") from None
    folder = str(path.resolve().parent)
    loader = SourceFileLoader("__main__", file)
    return Program(code, file, (script, *args), folder, None, loader)


def find_module(name: str, args: Sequence[str]) -> Program:
    """
    Find and compile a module; raises DeclarationError where there is none to run.

    Its packages are imported for that, as `python -m` does; what they raise is their own fault.
    """
    _enter(str(Path.cwd()))
    sys.argv = ["-m", *args]  # what a package on the way sees
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        inner = _spec(f"{name}.__main__")
        if inner is None:
            raise DeclarationError(f"{name} is a package without __main__.py. Give a module in it.")
        spec = inner
    loader: Any = spec.loader if spec is not None else None
    if spec is None or not hasattr(loader, "get_code"):
        raise DeclarationError(
            f"There is no module {name!r} to run, from {Path.cwd()}.{_slip(name)}"
        )
    try:
        code = loader.get_code(spec.name)
    except (SyntaxError, ValueError) as error:
        raise DeclarationError(f"{name} is not Python: {_syntax(error)}.") from None
    if code is None:
        raise DeclarationError(f"{name} has no Python code to run: {spec.origin}.")
    file = spec.origin or name
    return Program(code, file, (file, *args), str(Path.cwd()), spec, loader)


def execute(program: Program) -> None:
    """
    Execute a program as the main module, which it stays; raises what it raises.

    `sys.exit()` and `sys.exit(0)` are an end like any other.
    """
    main = ModuleType("__main__")
    vars(main).update(
        __file__=program.file,
        __spec__=program.spec,
        __package__=program.spec.parent if program.spec else None,
        __loader__=program.loader,
        __builtins__=builtins,
        __cached__=program.spec.cached if program.spec else None,
    )
    if sys.version_info < (3, 14):  # as the interpreter makes its own
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    sys.argv = list(program.argv)
    _enter(program.folder)
    try:
        exec(program.code, vars(main))  # noqa: S102 to run it is what we were asked for
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


@contextmanager
def time_limit(seconds: float | None, stop: type[Stopped]) -> Iterator[None]:
    """
    Raise `stop` in the block once it has run for so long, again and again until it leaves.

    It works by an alarm, hence in the main thread of a Unix process only, and interrupts Python
    code and sleeps, not a call that never comes back from C.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    waited = 0.0

    def expire(_signal: int, frame: FrameType | None) -> None:
        """Interrupt the program where it is; a deletion or an import is given time to end."""
        nonlocal waited
        waited += _AGAIN
        if waited > _PATIENCE or not _at_bad_moment(frame):
            over = stop(f"{seconds:g} seconds are over")
            over.place = place_of(frame)
            raise over

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def _at_bad_moment(frame: FrameType | None) -> bool:
    """Say whether Python deletes an object, or imports a module of which it cuts off the rest."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in _DELETING or code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _enter(folder: str) -> None:
    """Put a folder where Python puts that of the script, unless it was told not to."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _spec(name: str) -> ModuleSpec | None:
    """Find a module; a package on the way that is not there is the same as no module."""
    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
    except ValueError:  # of names such as `.train`
        return None


def _syntax(error: SyntaxError | ValueError) -> str:
    """Say in a few words what keeps a file from being compiled, and in which line."""
    if isinstance(error, SyntaxError):
        return f"{error.msg}, line {error.lineno}"
    return str(error)


def _hint(path: Path) -> str:
    """Return a sentence that may help where there is no such script."""
    if path.parent == Path() and which(path.name):
        return f" Leave out {path.name!r}: `trainguard run` takes the script itself."
    there = path.parent.glob("*.py") if path.parent.is_dir() else ()
    # By their stems: ".py" makes any two short names alike.
    close = get_close_matches(path.stem, [p.stem for p in there], n=1)
    return f" Did you mean {str(path.with_name(close[0] + '.py'))!r}?" if close else ""


def _slip(name: str) -> str:
    """Return a sentence that may help where a file was given for a module."""
    return " Leave out -m to run a file." if Path(name).is_file() else ""
