"""What must not be written down: values of options whose names say that they are secret."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from trainguard.core.names import words_of

HIDDEN: Final = "***"
_ALWAYS: Final = frozenset(
    ("password", "passwd", "pwd", "secret", "apikey", "passphrase", "credential", "credentials")
)
_AT_THE_END: Final = frozenset(("token", "key", "auth"))  # `--api-key`, not `--key-dim`
_PAIR: Final = re.compile(r"(-*[\w./-]+)=(.*)", re.DOTALL)
_LOGIN: Final = re.compile(r"(\w://[^/\s:@]*):[^/\s@]+@")  # https://name:password@host
_NUMBER: Final = re.compile(r"\d{1,6}|[-\d.e]{1,8}")  # `--mask-token 103`


def is_secret(name: str, value: str = "") -> bool:
    """Say whether a name says that its value is secret; a short number of a token is none."""
    words = words_of(name)
    if _ALWAYS.intersection(words):
        return True
    return bool(words) and words[-1] in _AT_THE_END and not _NUMBER.fullmatch(value)


def hide_secrets(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command line, with `***` where a value is secret."""
    option = ""
    for word in words:
        pair = _PAIR.fullmatch(word)
        if option and not word.startswith("-") and is_secret(option, word):
            yield HIDDEN
        elif pair is not None and is_secret(pair[1], pair[2]):
            yield f"{pair[1]}={HIDDEN}"
        else:
            yield _LOGIN.sub(rf"\1:{HIDDEN}@", word)
        option = word if word.startswith("-") and pair is None else ""
