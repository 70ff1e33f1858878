"""The files that `trainguard init` offers: guards of what was seen, settings, a workflow."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from inspect import signature
from keyword import iskeyword
from pathlib import PurePath
from typing import Any, Final

from trainguard.events.component import Component
from trainguard.report.run_summary import RunSummary, headline
from trainguard.subjects.loop import Script
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model

_BATCH: Final = "B"
_FEWEST: Final = 2  # samples: what is measured over a batch needs more than one
_SAMPLES: Final = 4  # enough for all that is judged between samples
_OPTIONS: Final = {
    "loss": signature(Loss.__init__).parameters.keys(),
    "model": signature(Model.__init__).parameters.keys(),
}
_GUESSES: Final = {
    "batch": "seen in each of these steps",
    "trainable": "guess: nothing is frozen, as each parameter has moved",
    "falls": "guess: the loss fell by a quarter more than this share",
}
_NO_ZERO_VECTOR: Final = (
    'allow={"gradient_is_bounded": "guess: it explodes at a vector of zeros, and none was seen"},'
)
SETTINGS: Final = """\
[tool.trainguard]
files = ["guard_*.py"]  # the default
"""
_WORKFLOW: Final = """\
name: trainguard
on: [pull_request]
permissions:
  contents: read
jobs:
  judge:
    runs-on: ubuntu-latest
{where}    steps:
      - uses: actions/checkout@v5
      - uses: actions/setup-python@v6
        with: {{ python-version: "{python}" }}
{installs}      - run: python -m pip install trainguard  # guess: or where you have it from
      - run: pytest --trainguard -m trainguard
"""


def render_guard(
    script: Script,
    told: RunSummary,
    promises: Mapping[str, Any],
    components: Sequence[Component] = (),
    folder: str = "",
    excused: Container[str] = (),
) -> str:
    """
    Return a guard file that declares a script, with the promises that it was seen to keep.

    components: of the script, that are declared too. folder: where Python has to look for them.
    excused: the names of losses that divide by the norm of a vector, which the run never saw at 0.
    """
    path = PurePath(script.path).as_posix()
    lines = ["module=True,  # as `python -m` runs it"] if script.module else []
    lines += [f"args={_code(list(script.args))},"] if script.args else []
    lines += [f"directory={_code(str(script.directory))},"] if script.directory else []
    lines += [f"steps={script.steps},"]
    lines += [f"{name}={_code(value)},  # {_GUESSES[name]}" for name, value in promises.items()]
    rates = {rate for ends in told.rates.values() for end in ends for rate in end}
    named = zip(components, names_of(components, script), strict=True)
    shown = ", ".join(f"{rate:.3g}" for rate in sorted(rates)[:4])
    return "\n".join(
        [
            '"""',
            f"Guards of {_plain(path)}, as `trainguard init` saw it.",
            "",
            "Judged by `pytest --trainguard`. Lines with a guess are yours to confirm or delete.",
            '"""',
            "",
            *_render_imports(components, folder),
            "",
            f"# Seen: {_plain(headline(told, script.name))}",
            *([f"# Rates: {shown}"] if shown else []),
            f"{guard_name(script)} = tg.Script(",
            f"    {_code(path)},",
            *(f"    {line}" for line in lines),
            ")",
            "",
            *(line for made, name in named for line in _render(made, name, name in excused)),
        ]
    )


def _render_imports(components: Sequence[Component], folder: str) -> Iterator[str]:
    """Yield the lines that import what is declared."""
    declared = [each for each in components if not each.obstacle]
    if not declared or not folder:
        yield "import trainguard as tg"
    else:
        yield from ("import sys", "from pathlib import Path", "", "import trainguard as tg", "")
        yield "# What the script imports is found beside it."
        yield f"sys.path.insert(0, str(Path(__file__).parent / {_code(folder)}))"
    modules: dict[str, set[str]] = {}
    for each in declared:
        for module, name in ((each.module, each.name), *each.imports):
            modules.setdefault(module, set()).add(name)
    for module in sorted(modules):
        yield f"from {module} import {', '.join(sorted(modules[module]))}"


def _render(made: Component, name: str, excused: bool) -> Iterator[str]:
    """Yield the lines that declare a component under a name, or say why it is not declared."""
    if made.obstacle:
        yield f"# Not declared: {made.kind} `{_plain(made.name)}` ({_plain(made.source)}), as"
        yield f"# {_plain(made.obstacle)}."
    else:
        yield f"# Seen: {_plain(made.source)}"
        yield f"{name} = tg.{made.kind.capitalize()}("
        yield from (f"    {line}" for line in _declare(made))
        if excused:
            yield f"    {_NO_ZERO_VECTOR}"
        yield ")"
    yield ""


def _declare(made: Component) -> Iterator[str]:
    """Yield what stands in the declaration of a component."""
    given = ", ".join(f"{name}={code}" for name, code in made.arguments)
    builds = made.kind == "loss" and made.built
    calls = [f'"{name}": {call}' for name, call, *_ in made.splits if call]
    if calls:
        yield from ("lambda: {", *(f"    {call}," for call in calls), "},")
    else:
        yield f"{made.name}({given})," if builds else f"{made.name},"
    if given and not builds:
        yield f"arguments=dict({given}),"
    if made.splits and any(name for name, *_ in made.splits):
        yield "splits={"
        yield from (f"    {_render_split(*each)}" for each in made.splits)
        yield "},  # guess: the batches and orders that were seen"
    if made.rate:
        yield f"base_rate={made.rate!r},  # the rate that its optimizer had"
    drawn = {each[0]: _render_input(*each[1:]) for each in made.inputs}
    if drawn.keys() & _OPTIONS.get(made.kind, set()):
        yield from ("inputs={", *(f'    "{name}": {line}' for name, line in drawn.items()), "},")
    else:
        yield from (f"{name}={line}" for name, line in drawn.items())
    if made.sizes:
        yield f"sizes={{{', '.join(_sizes(made))}}},  # guess: fewer samples do, other sizes stay"


def _render_split(name: str, _: str, batch: int, order: str) -> str:
    """
    Return a split and what it promises as code.

    That a training keeps its order is no promise: it is a mistake more often than a choice.
    """
    told = [f'"batch": {batch}'] if batch else []
    if order and not (order == "in order" and name.startswith("train")):
        told.append(f'"shuffled": {order == "shuffled"}')
    return f'"{name}": {{{", ".join(told)}}},'


def _render_input(kind: str, shape: str, low: float, high: float, grad: bool, values: str) -> str:
    """Return the domain of an input as code, marked as far as it is a guess."""
    if kind == "value":
        return f"tg.choice({values}),  # as it was given"
    if kind == "choice":
        return f'tg.choice({values}, shape="{shape}"),  # guess: no other values were seen'
    if kind == "mask":
        padding = values.partition(", ")[0]
        return f'tg.mask("{shape}", padding={padding}),  # guess: ones, and then zeros'
    if kind == "integer":
        but = f"; {values} too, which may mark what does not count" if values else ""
        return (
            f'tg.integer("{shape}", {low:.0f}, {high:.0f}),  # guess: the range that was seen{but}'
        )
    fixed = "" if grad else ", grad=False"
    return f'tg.real("{shape}", {low!r}, {high!r}{fixed}),  # guess: the range that was seen'


def _sizes(made: Component) -> Iterator[str]:
    """Yield the sizes of the named dimensions as code; a batch that others depend on stays."""
    fixed = {word for each in made.inputs for word in each[2].split() if word.isdigit()}
    for name, least, most in made.sizes:
        if name == _BATCH and not (least == most and str(most) in fixed):
            least, most = min(least, _FEWEST), min(most, _SAMPLES)
        yield f'"{name}": {most}' if least == most else f'"{name}": ({least}, {most})'


def names_of(components: Sequence[Component], script: Script) -> list[str]:
    """Return a name for each component: its own and its kind, and none that means another thing."""
    used, names = {guard_name(script), "tg", *(c.name for c in components)}, []
    for made in components:
        own = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", made.name).lower()
        short = own.removesuffix(f"_{made.kind}")
        tried = [f"{short}_{made.kind}", short, f"{own}_{made.kind}"]
        tried = ["loaders", f"{own}_loaders"] if made.kind == "loader" else tried
        name = next(n for n in tried if n not in used)
        used.add(name)
        names.append(name)
    return names


def render_workflow(python: str, installs: Sequence[str], folder: str) -> str:
    """Return a workflow of GitHub Actions that judges what a project declares."""
    where = f"    defaults: {{ run: {{ working-directory: {_code(folder)} }} }}\n"
    steps = "".join(f"      - run: python -m pip install {words}\n" for words in installs)
    return _WORKFLOW.format(python=python, where=where if folder != "." else "", installs=steps)


def guard_name(script: Script) -> str:
    """Return a name for what a script is declared as, and its guard file is called by."""
    own = str(script.path) if script.module else PurePath(script.path).stem
    name = re.sub(r"\W+", "_", own, flags=re.ASCII).strip("_") or "script"
    name = f"script_{name}" if name[0].isdecimal() else name
    return f"{name}_script" if iskeyword(name) or name == "tg" else name


def _code(value: Any) -> str:
    """Return a value as code, in double quotes where those need no escape."""
    code = repr(value)
    return code if '"' in code or "\\" in code else code.replace("'", '"')


def _plain(text: str) -> str:
    """Return a text that ends neither a comment nor a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
