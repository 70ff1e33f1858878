"""The project of a training: what of it is copied, for each mutant anew, and where that runs."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainguard.command.options import file_of_module
from trainguard.core.errors import DeclarationError

_LEFT_OUT: Final = (
    *("__pycache__", "*.pyc", ".git", ".hg", ".venv", "venv", ".tox", ".nox", "node_modules"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
)
_READ: Final = (".py", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini")
_MOST: Final = 1024**3  # bytes that are copied for each mutant: a second or so on most disks


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """
    What is copied, and what of it is run.

    root: the working directory if the script is below it, else the folder of the script.
    script: its path from there. guards: what the team's own guards are, from there too.
    module: the name by which it is run, as for `python -m`; "" where it is run as a script.
    """

    root: Path
    script: str
    args: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    module: str = ""

    @property
    def words(self) -> list[str]:
        """Return how it is run: what `trainguard run` gets behind its own options."""
        return [*(["-m", "--", self.module] if self.module else ["--", self.script]), *self.args]

    def copy(self, folder: Path, changes: dict[str, bytes]) -> None:
        """Make a copy in a folder that is not there yet, some files with another content."""
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(self.root, folder, ignore=ignore, ignore_dangling_symlinks=True)
        for name, text in changes.items():
            (folder / name).unlink(missing_ok=True)  # it may be read-only
            (folder / name).write_bytes(text)

    def paths(self, folder: Path) -> list[str]:
        """Return where a copy imports from: its own folders first, then what we import from."""
        own = [path for path in (folder, folder / "src") if path.is_dir()]
        for entry in sys.path:
            inside = Path(entry).is_relative_to(self.root) if entry else False
            twin = folder / Path(entry).relative_to(self.root) if inside else Path(entry)
            own += [twin if twin.is_dir() else Path(entry)] if entry else []
        return list(dict.fromkeys(map(str, own)))

    def fingerprint(self, *more: object) -> str:
        """Return a checksum of all its code and configuration, of its arguments and of more."""
        total = hashlib.sha256(repr((self.words, self.guards, more)).encode())
        for file in sorted(self._files()):
            if file.suffix in _READ:
                total.update(str(file.relative_to(self.root)).encode() + file.read_bytes())
        return total.hexdigest()[:24]

    def check_size(self) -> None:
        """Raise where it is too large to be copied many times."""
        size = 0
        for file in self._files():
            size += file.stat().st_size if file.exists() else 0
            if size > _MOST:
                raise DeclarationError(
                    f"{self.root} holds more than 1 GiB, which would be copied for each mutant."
                    " Start it in the folder of the training, with its data elsewhere."
                )

    def _files(self) -> Iterator[Path]:
        """Yield the files that are copied."""
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        for folder, inner, files in os.walk(self.root, followlinks=True):
            out = ignore(folder, [*inner, *files])
            inner[:] = sorted(set(inner) - out)
            yield from (Path(folder, file) for file in files if file not in out)


def find_project(
    script: str, args: tuple[str, ...], guards: tuple[str, ...], *, module: bool = False
) -> Project:
    """Return the project of a script, or a module; raises DeclarationError where there is none."""
    path, here = file_of_module(script) if module else _absolute(script), Path.cwd()
    if not path.is_file():
        raise DeclarationError(f"There is no script {script!r} in {here}.")
    root = here if path.is_relative_to(here) else path.parent
    if module and root != here:
        raise DeclarationError(
            f"{path} is not below {here}, which is what is copied. Start it in the folder of the"
            " project."
        )
    for guard in guards:
        file = _absolute(guard.partition("::")[0])
        if not file.exists():
            raise DeclarationError(f"--guards {guard}: there is no such file or folder.")
        if not file.is_relative_to(root):
            raise DeclarationError(f"--guards {guard} is not in {root}, which is what is copied.")
    names = tuple(
        f"{_absolute(file).relative_to(root)}{colons}{name}"
        for file, colons, name in (guard.partition("::") for guard in guards)
    )
    own = str(path.relative_to(root))
    return Project(root=root, script=own, args=args, guards=names, module=script if module else "")


def _absolute(path: str) -> Path:
    """Return a path from the root, links kept."""
    return Path(os.path.normpath(Path(path).absolute()))
