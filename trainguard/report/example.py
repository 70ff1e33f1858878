"""The code that shows an invariant: a component that breaks it, and the change that mends it."""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Final

_EMPTY: Final = re.compile(r"\A(?: *\n)+|\s+\Z")  # lines around a hunk


def mended_example(key: str) -> str:
    """Return a diff from code that breaks an invariant to code that holds it; empty without one."""
    hunks = _examples().get(key, "").removeprefix("@@\n").split("\n@@\n")
    return "\n...\n".join(_EMPTY.sub("", hunk) for hunk in hunks)


@cache
def _examples() -> dict[str, str]:
    """Read the examples, which `docs/make_catalogue.py` takes from the fixtures that tests run."""
    text = files("trainguard.report").joinpath("examples.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
