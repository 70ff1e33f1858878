"""The files that `trainguard init` offers: guards of what was seen, settings, a workflow."""

import re
import shlex
from collections.abc import Mapping
from keyword import iskeyword
from pathlib import PurePath
from typing import Any, Final

from trainguard.report.run_summary import RunSummary, headline
from trainguard.subjects.loop import Script

_GUESSES: Final = {
    "batch": "seen in each of these steps",
    "trainable": "guess: nothing is frozen, as each parameter has moved",
    "falls": "guess: the loss fell by a quarter more than this share",
}
SETTINGS: Final = """\
[tool.trainguard]
files = ["guard_*.py"]  # the default
"""


def render_guard(script: Script, told: RunSummary, promises: Mapping[str, Any]) -> str:
    """Return a guard file that declares a script, with the promises that it was seen to keep."""
    path = PurePath(script.path).as_posix()
    lines = [f"args={_code(list(script.args))},"] if script.args else []
    lines += [f"steps={script.steps},"]
    lines += [f"{name}={_code(value)},  # {_GUESSES[name]}" for name, value in promises.items()]
    rates = {rate for ends in told.rates.values() for end in ends for rate in end}
    shown = ", ".join(f"{rate:.3g}" for rate in sorted(rates)[:4])
    return "\n".join(
        [
            '"""',
            f"Guards of {_plain(path)}, as `trainguard init` saw it.",
            "",
            "Judged by `pytest --trainguard`. Lines with a guess are yours to confirm or delete.",
            '"""',
            "",
            "import trainguard as tg",
            "",
            f"# Seen: {_plain(headline(told, script.name))}",
            *([f"# Rates: {shown}"] if shown else []),
            f"{guard_name(path)} = tg.Script(",
            f"    {_code(path)},",
            *(f"    {line}" for line in lines),
            ")",
            "",
        ]
    )


def render_workflow(script: Script) -> str:
    """Return the steps of a workflow of GitHub Actions that judge a script."""
    run = shlex.join(["trainguard", "run", "--steps", str(script.steps), str(script.path)])
    args = f" {shlex.join(map(str, script.args))}" if script.args else ""
    return f"- run: pytest --trainguard\n- run: {run}{args}\n"


def guard_name(path: str) -> str:
    """Return a name for what a script is declared as, and its guard file is called by."""
    name = re.sub(r"\W+", "_", PurePath(path).stem, flags=re.ASCII).strip("_") or "script"
    name = f"script_{name}" if name[0].isdecimal() else name
    return f"{name}_script" if iskeyword(name) or name == "tg" else name


def _code(value: Any) -> str:
    """Return a value as code, in double quotes where those need no escape."""
    code = repr(value)
    return code if '"' in code or "\\" in code else code.replace("'", '"')


def _plain(text: str) -> str:
    """Return a text that ends neither a comment nor a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
