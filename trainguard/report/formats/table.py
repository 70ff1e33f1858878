"""The formats by their names: a format that is added has its line here."""

from collections.abc import Sequence
from typing import Final

from trainguard.core.errors import DeclarationError
from trainguard.report.formats import (
    RunAccount,
    github_format,
    html_format,
    json_format,
    junit_format,
    markdown_format,
    sarif_format,
    text_format,
)

FORMATS: Final = {
    "text": text_format.write,
    "json": json_format.write,
    "github": github_format.write,
    "sarif": sarif_format.write,
    "junit": junit_format.write,
    "html": html_format.write,
    "markdown": markdown_format.write,
}


def write_accounts(name: str, accounts: Sequence[RunAccount]) -> str:
    """Return the accounts of runs in a format of `FORMATS`."""
    return FORMATS[name](accounts)


def split_format(option: str, text: str) -> tuple[str, str]:
    """Return format and file of `FORMAT` or `FORMAT=FILE`; raises where there is no such format."""
    name, _, file = text.partition("=")
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise DeclarationError(f"{option} {text!r} is no format. Known: {known}.")
    if file == "" and "=" in text:
        raise DeclarationError(f"{option} {text!r} names no file. Write {name}=<file>.")
    return name, file
