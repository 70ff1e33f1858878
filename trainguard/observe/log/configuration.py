"""What a run was told: its settings and versions, from the files that stand beside its logs."""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trainguard.core.secrets import is_secret

_NAMES: Final = frozenset(
    f"{name}.{ending}"
    for name in ("config", "hparams", "args", "params", "configuration", "training_args", "opt")
    for ending in ("yaml", "yml", "json")
) | {"wandb-metadata.json", "trainer_state.json", "training_args.bin"}
_WITHIN: Final = ("", ".hydra", "files")  # folders beside a log where tools keep them
_LARGEST: Final = 1 << 20  # bytes; of a larger state the settings cannot be told from its history
_MOST: Final = 512
_LONGEST: Final = 60  # characters of a value
_DEEPEST: Final = 4
# What says where and when a run was, or how far it came, and not what it was told.
_OWN: Final = frozenset(
    ("log_history", "global_step", "epoch", "best_metric", "best_model_checkpoint", "total_flos",
     "best_global_step", "stateful_callbacks", "startedAt", "heartbeatAt", "host", "wandb_version",
     "_wandb", "disk", "memory", "writerId", "email", "username")
)  # fmt: skip
_PAIR: Final = re.compile(r"( *)(?:- )?['\"]?([\w./ -]+?)['\"]?\s*:(?:\s+(.*?))?\s*")
_PINNED: Final = re.compile(r"([\w.-]+)==(\S+)")
Told = tuple[tuple[str, str], ...]
_PLAIN: Final = (str, int, float, bool)


def settings_beside(files: list[Path]) -> Told:
    """Return the settings that stand in files beside some logs, by name; nothing where none do."""
    found = dict[str, str]()
    for folder in dict.fromkeys(parent for file in files for parent in _folders(file)):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                for name, value in _read(path):
                    if len(found) < _MOST and not is_secret(name, value):
                        found.setdefault(name, " ".join(value.split())[:_LONGEST])
            except (OSError, ValueError, RecursionError):
                continue  # what cannot be read says nothing
    return tuple(sorted(found.items()))


def _folders(file: Path) -> Iterator[Path]:
    """Yield the folders where the settings of the run of a log may be."""
    folder = file.parent
    if "metrics" in folder.parts:  # MLflow: metrics/train/loss beside params/lr
        while folder.name != "metrics":
            folder = folder.parent
        yield folder.parent / "params"
        folder = folder.parent
    yield from (folder / name for name in _WITHIN)


def _read(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of one file; nothing of a file that has none."""
    pinned = path.name == "requirements.txt"
    known = path.name in _NAMES or pinned or path.parent.name == "params"
    if not known or not path.is_file() or path.stat().st_size > _LARGEST:
        return
    if path.suffix == ".bin":
        yield from read_arguments(path)
        return
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "params":
        yield path.name, text
    elif pinned:
        yield from ((name, version) for name, version in _PINNED.findall(text))
    elif path.suffix == ".json":
        yield from _flatten(json.loads(text))
    else:
        yield from _lines(text)


def _flatten(read: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the plain values of an object, those of objects in it under `outer.inner`."""
    for key, value in read.items() if isinstance(read, Mapping) else ():
        if key in _OWN:
            continue
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _flatten(value, f"{before}{key}.", depth + 1)
        else:
            yield f"{before}{key}", value if isinstance(value, str) else json.dumps(value)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the plain values of YAML as people and tools write it: `name: value`, indented."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = _PAIR.fullmatch(line.split(" #")[0])
        if found is None:
            continue
        depth, name, value = len(found[1]), found[2], found[3]
        above = [outer for outer in above if outer[0] < depth]
        if not value:
            above.append((depth, name))
        elif not _OWN.intersection((name, *(outer for _, outer in above))):
            # W&B writes each setting as an object with a `value` and a `desc`.
            full = [outer for _, outer in above] + ([] if name == "value" and above else [name])
            yield ".".join(full), value.strip("'\"")


class Blank:
    """What stands for an object of whatever class: what it was made of, and what it was given."""

    made_of: tuple[Any, ...] = ()

    def __new__(cls, *made_of: Any, **_: Any) -> "Blank":
        """Make one of anything."""
        made = super().__new__(cls)
        made.made_of = made_of
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class _Blanks(pickle.Unpickler):
    """Reads a pickle in which all that is no plain value is a blank."""

    def find_class(self, _module: str, _name: str) -> Any:
        """Return the blank, whatever is asked for."""
        return Blank

    def persistent_load(self, _key: Any) -> Any:
        """Return a blank for a tensor's content."""
        return Blank()


def read_arguments(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the plain settings of a training_args.bin; raises ValueError for what is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            told = next(m for m in archive.infolist() if m.filename.endswith("/data.pkl"))
            if told.file_size > _LARGEST:
                return
            read = _Blanks(io.BytesIO(archive.read(told))).load()
    except Exception as error:  # noqa: BLE001 damaged pickles raise whatever their opcodes meet
        raise ValueError(str(error)) from None
    for name, value in vars(read).items() if isinstance(read, Blank) else ():
        # A member of an enumeration is made of its value.
        plain = value.made_of[0] if isinstance(value, Blank) and value.made_of else value
        if isinstance(plain, _PLAIN) and not name.startswith("_") and name != "made_of":
            yield name, str(plain)
