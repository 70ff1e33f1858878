"""What `trainguard init --write` adds to a project: its settings, and a workflow of GitHub."""

import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainguard.core.errors import DeclarationError
from trainguard.core.files import write_whole
from trainguard.report.guard_file import SETTINGS, render_workflow

_WORKFLOW: Final = Path(".github", "workflows", "trainguard.yml")
_OPTIONAL: Final = "For pyproject.toml, where other settings are wanted (docs/adopt.md has them)"
_BUILDS: Final = ("setup.py", "setup.cfg")


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The pyproject.toml of a project, the workflow beside its .git, and the text of each."""

    settings: Path
    workflow: Path
    table: dict[str, Any]
    steps: str

    def offer(self, command: str = "SCRIPT") -> str:
        """
        Return what `--write` would write; nothing where all of it is there.

        command: what `trainguard init` was given, to be repeated.
        """
        lines = []
        if "trainguard" not in self.table.get("tool", {}):
            lines += [f"{_OPTIONAL}:", "", SETTINGS]
        if not self.workflow.exists():
            lines += [f"For {_WORKFLOW.as_posix()}, on GitHub:", "", self.steps]
        how = f"`trainguard init --write {command}` writes this too (--write before SCRIPT)."
        return "\n".join([*lines, how]) if lines else ""

    def write(self) -> str:
        """Write what is not there yet, and say what was added where; nothing is replaced."""
        added = [
            _tell(self.settings, SETTINGS, self._add_settings),
            _tell(self.workflow, self.steps, self._add_workflow),
        ]
        return "\n".join(added)

    def _add_settings(self) -> str:
        """Append the settings to the file; return why that is not done."""
        if "trainguard" in self.table.get("tool", {}):
            return "it has a [tool.trainguard]"
        old = self.settings.read_bytes() if self.settings.exists() else b""
        end = b"\r\n" if b"\r\n" in old else b"\n"
        gap = b"" if not old else end if old.endswith(b"\n") else 2 * end
        new = gap + SETTINGS.encode().replace(b"\n", end)
        try:
            tomllib.loads((old + new).decode())
        except ValueError:  # after `tool = {...}`
            return "its tools take no further table, write it by hand"
        with self.settings.open("ab") as file:  # what stands there is not touched
            file.write(new)
        return ""

    def _add_workflow(self) -> str:
        """Write the workflow; return why that is not done."""
        if self.workflow.exists():
            return "it is there already"
        write_whole(self.workflow, self.steps)
        return ""


def find_project_files() -> ProjectFiles:
    """Look for the project that the working directory is in; raises where it cannot be read."""
    here = Path.cwd()
    above = (here, *here.parents)
    root = next((folder for folder in above if (folder / ".git").exists()), here)
    inside = [folder for folder in above if folder.is_relative_to(root)]
    found = [folder for folder in inside if (folder / "pyproject.toml").is_file()]
    home = found[0] if found else root
    settings = home / "pyproject.toml"
    table = _read(settings) if found else {}
    installs = []
    if "project" in table or any((home / name).is_file() for name in _BUILDS):
        installs.append("-e .")
    if (home / "requirements.txt").is_file():
        installs.append("-r requirements.txt")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    steps = render_workflow(python, installs, home.relative_to(root).as_posix())
    return ProjectFiles(settings, root / _WORKFLOW, table, steps)


def _read(file: Path) -> dict[str, Any]:
    """Return what a pyproject.toml has; raises where nobody can read it."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DeclarationError(f"{file} is no valid TOML: {error}.") from None


def _tell(file: Path, text: str, add: Callable[[], str]) -> str:
    """Add to a file, and say what was added, as a diff does, or why nothing was."""
    name = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    try:
        left = add()
    except OSError as error:
        return f"{name} could not be written: {error.strerror}."
    if left:
        return f"{name} is left as it is: {left}."
    lines = (f"+ {line}".rstrip() for line in text.splitlines())
    return "\n".join([f"{name} has now:", *lines, ""])
