"""Settings: what `[tool.trainguard]`, the ini options and the command line agree on."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trainguard.core.errors import DeclarationError, did_you_mean

PROFILES = ("quick", "ci", "thorough")
DEVICES = ("cpu", "cuda", "mps", "xpu", "mtia", "hpu", "npu")
_MEANT = {"gpu": "cuda"}  # what a device is called that is none
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:\d+)?")
DTYPES = ("float64", "float32", "bfloat16", "float16")
LISTS = ("select", "ignore", "devices", "dtypes", "files")


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How a run explores and what it judges.

    select, ignore: globs of invariants (`loss.*`, `gradient_is_finite`); empty select means all.
    devices, dtypes: restrict the items; empty means every device present, every declared dtype.
    profile: how much is explored: quick, ci or thorough.
    files: the names of guard files.
    seed: what all drawing starts from; `--hypothesis-seed` where that is given.
    strict: whether notes fail too.
    bless: whether snapshots are written anew; `--snapshot-update`.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    profile: str = "ci"
    files: tuple[str, ...] = ("guard_*.py",)
    seed: int = 0
    strict: bool = False
    bless: bool = False

    def with_values(self, source: str, values: Mapping[str, Any]) -> "Settings":
        """Return the settings with the given ones put in; `source` is named in what is refused."""
        known = {column.name for column in fields(self)} - {"seed", "bless"}
        for name in values:
            if name not in known:
                raise DeclarationError(
                    f"{source} has no setting {name!r}.{did_you_mean(name, known)}"
                )
        clean = {name: _clean(source, name, value) for name, value in values.items()}
        return replace(self, **clean)


def from_pyproject(root: Path) -> Settings:
    """Read `[tool.trainguard]` of the pyproject.toml in `root`, if there is one."""
    return Settings().with_values("[tool.trainguard]", _read_table(root) or {})


def find_settings(folder: Path) -> Settings:
    """Read `[tool.trainguard]` of the nearest pyproject.toml upward that has one, in a checkout."""
    folder = folder.absolute()
    for root in (folder, *folder.parents):
        table = _read_table(root)
        if table is not None:
            return Settings().with_values("[tool.trainguard]", table)
        if os.path.lexists(root / ".git"):
            break
    return Settings()


def _read_table(root: Path) -> dict[str, Any] | None:
    """Return the table of the pyproject.toml in `root`; None where there is no file or no table."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{file} is no valid TOML: {error}.") from None
    own = table.get("trainguard") if isinstance(table, dict) else None
    if own is not None and not isinstance(own, dict):
        raise DeclarationError(f"{file} has tool.trainguard={own!r}. Write a table of settings.")
    return own


def _clean(source: str, name: str, value: Any) -> Any:
    """Return one setting's value in its own type; raises for what it cannot be."""
    if name == "strict":
        if not isinstance(value, bool):
            raise DeclarationError(f"{source} has strict={value!r}. Write true or false.")
        return value
    if name == "profile":
        return _word(source, name, value, PROFILES)
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise DeclarationError(f"{source} has {name}={value!r}. Write a list of strings.")
    if name == "dtypes":
        items = [_word(source, name, item, DTYPES) for item in items]
    if name == "devices":
        items = [_device(source, item) for item in items]
    return tuple(items)


def _device(source: str, value: str) -> str:
    """Return the name of a device; an accelerator may have registered itself under any."""
    kind = value.partition(":")[0]
    near = did_you_mean(_MEANT.get(kind.lower(), kind), DEVICES)
    if not _DEVICE.fullmatch(value) or (kind not in DEVICES and "mean" in near):
        raise DeclarationError(f"{source} has devices={value!r}.{near}")
    return value


def _word(source: str, name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return the value if it is one of the known words, and raise otherwise."""
    if value not in known:
        near = did_you_mean(str(value), known)
        raise DeclarationError(f"{source} has {name}={value!r}.{near}")
    return str(value)
