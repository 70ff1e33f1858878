"""The formats by their names: a format that is added has its line here."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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


class Format(NamedTuple):
    """A format: what it tells of one account in plain values, and the text of all that is told."""

    tell: Callable[[RunAccount], Any]
    write: Callable[[Sequence[Any]], str]


FORMATS: Final = {
    "text": Format(text_format.tell, text_format.write),
    "json": Format(json_format.tell, json_format.write),
    "github": Format(github_format.tell, github_format.write),
    "sarif": Format(sarif_format.tell, sarif_format.write),
    "junit": Format(junit_format.tell, junit_format.write),
    "html": Format(html_format.tell, html_format.write),
    "markdown": Format(markdown_format.tell, markdown_format.write),
}


def write_accounts(name: str, accounts: Sequence[RunAccount]) -> str:
    """Return the accounts of runs in a format of `FORMATS`."""
    return FORMATS[name].write([*map(FORMATS[name].tell, accounts)])


def write_told(name: str, told: Sequence[Any]) -> str:
    """Return what was told in a format as the text of a file, which ends with a line break."""
    text = FORMATS[name].write(told)
    return text if text.endswith("\n") or not text else f"{text}\n"


def split_format(option: str, text: str) -> tuple[str, str]:
    """Return format and file of `FORMAT` or `FORMAT=FILE`; raises where there is no such format."""
    name, _, file = text.partition("=")
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise DeclarationError(f"{option} {text!r} is no format. Known: {known}.")
    if file == "" and "=" in text:
        raise DeclarationError(f"{option} {text!r} names no file. Write {name}=<file>.")
    return name, file
