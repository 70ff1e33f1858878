"""The trainer_state.json of Hugging Face's Trainer, and other files that are one JSON document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainguard.core.errors import DeclarationError
from trainguard.logs.json_lines import row_of
from trainguard.logs.reading import open_log
from trainguard.logs.row import Row
from trainguard.logs.text import encoding_of

_LARGEST = 1 << 30  # bytes: a state of a million steps has 150 MB
_LISTS = ("log_history", "history", "logs", "metrics")


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of a document: its `log_history`, or the list that it is."""
    document = _load(file)
    entries: Any = document
    total = 0
    if isinstance(document, dict):
        entries = next((document[n] for n in _LISTS if isinstance(document.get(n), list)), [])
        most = document.get("max_steps")
        total = most if isinstance(most, int) and 0 < most < 1 << 62 else 0
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            row = row_of(entry, chosen)
            yield row._replace(total=total) if total else row


def _load(file: Path) -> Any:
    """Return the document of a file; raises for one that is none."""
    if file.stat().st_size > _LARGEST:
        raise DeclarationError(
            f"{file} is one document of more than 1 GiB. Write one JSON object a line instead."
        )
    with open_log(file) as opened:
        content = opened.read()
    try:
        return json.loads(content.decode(encoding_of(content[:3]), "replace"))
    except (ValueError, RecursionError) as error:
        raise DeclarationError(
            f"{file} is no whole JSON document ({str(error)[:60]}). Give another log of the run."
        ) from None
