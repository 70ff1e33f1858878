"""
The training_args.bin of Hugging Face's Trainer: a pickle that torch.save has put into an archive.

No code in it is run: whatever class or function it names, a blank stands for it.
"""

import io
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_LARGEST: Final = 1 << 20  # bytes
_PLAIN: Final = (str, int, float, bool)


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
