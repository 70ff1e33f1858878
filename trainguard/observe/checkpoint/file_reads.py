"""What writes and reads checkpoints: how often something is written, and what is read unsafely."""

import inspect
import os
import pickle
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from trainguard.events.checkpoint import Load
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import foreign

_MOST = 32  # calls that are told
_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_NO_WEIGHTS = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class FileReads:
    """
    The calls of torch.save and pickle.dump, counted, and those of torch.load and pickle.load.

    A call counts as the team's where the very line that makes it is theirs: what a library loads
    with is the library's affair.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.written = 0
        self._calls: list[tuple[str, Path, str]] = []

    def install(self, patches: Patches) -> None:
        """Listen to the functions that write and read."""
        patches.replace(torch, "save", self._writes)
        patches.replace(pickle, "dump", self._writes)
        if "safetensors.torch" in sys.modules:
            for name in ("save_file", "save_model"):
                patches.replace(sys.modules["safetensors.torch"], name, self._writes)
        patches.replace(torch, "load", lambda load: self._reads(load, "torch.load"))
        patches.replace(pickle, "load", lambda load: self._reads(load, "pickle.load"))

    def list_loads(self) -> list[Load]:
        """Return the calls that may have executed what stood in a file, each line once."""
        told = {}
        for call, file, source in self._calls:
            if file.is_file() and source not in told:
                obstacle = _obstacle(file) if call == "torch.load" else ""
                told[source] = Load(call=call, file=file.name, obstacle=obstacle, source=source)
        return list(told.values())

    def _writes(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that writes, and counts."""

        @wraps(write)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Write."""
            self.written += 1
            return write(*args, **kwargs)

        return wrapper

    def _reads(self, load: Callable[..., Any], call: str) -> Callable[..., Any]:
        """Return a function that reads, and remembers which line of the team's reads unsafely."""

        @wraps(load)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Read."""
            frame = sys._getframe(1)  # noqa: SLF001 the one way to look at callers cheaply
            if foreign(frame.f_code.co_filename) and len(self._calls) < _MOST:
                file = self._file(args, kwargs)
                if file is not None and not (call == "torch.load" and _is_safe(load, kwargs)):
                    source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    self._calls.append((call, file, source))
            return load(*args, **kwargs)

        return wrapper

    def _file(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path | None:
        """Return the file of the run that is read, if it is one."""
        given = args[0] if args else kwargs.get("f", kwargs.get("file"))
        name = given if isinstance(given, str | os.PathLike) else getattr(given, "name", None)
        if not isinstance(name, str | os.PathLike):
            return None
        path = Path(name).resolve()
        return path if path.is_relative_to(self.directory) else None


def _is_safe(load: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Say whether torch.load is told, or takes it upon itself, to execute nothing."""
    if os.environ.get(_WEIGHTS, "").lower() in ("1", "y", "yes", "true"):
        return True
    if os.environ.get(_NO_WEIGHTS, "").lower() in ("1", "y", "yes", "true"):
        return False
    asked = kwargs.get("weights_only")
    if asked is not None:
        return bool(asked)
    if kwargs.get("pickle_module") is not None:
        return False
    return _safe_by_default(load)


def _safe_by_default(load: Callable[..., Any]) -> bool:
    """Say whether this torch executes nothing unless it is told to, as from 2.6 on."""
    default = inspect.signature(load).parameters["weights_only"].default
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return default is None and (major, minor) >= (2, 6)


def _obstacle(file: Path) -> str:
    """Return what keeps a file from being loaded safely; "" where nothing does."""
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 whatever it is, it is what is told
        words = str(error)
        for start in ("Unsupported global: GLOBAL ", "Unsupported class "):
            if start in words:
                return words.partition(start)[2].split()[0].rstrip(".,")
        return type(error).__name__
    return ""
