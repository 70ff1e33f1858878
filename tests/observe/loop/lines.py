"""Lines of the tests themselves, by what is written there."""

import inspect


def line_of(code: str, owner: object) -> str:
    """Return the line that has some code, within a function or class: `file:line`."""
    lines, first = inspect.getsourcelines(owner)  # type: ignore[arg-type]
    (place,) = [number for number, line in enumerate(lines, first) if code in line]
    return f"{inspect.getsourcefile(owner)}:{place}"  # type: ignore[arg-type]
