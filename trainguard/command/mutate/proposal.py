"""The guard that would notice a mutant: a declaration to paste, tried on what was recorded."""

import ast
from math import isfinite
from typing import Any, Final

from trainguard.command.mutate.mistakes.operator import Mutant
from trainguard.command.mutate.project import Project
from trainguard.command.mutate.trial import Trial
from trainguard.events.curve import COLUMNS
from trainguard.judging.promises import broken_with, promises_of

_VISIBLE: Final = 1e-2  # a curve that differs by so much leaves every band of rounding


def propose(project: Project, mutant: Mutant, whole: Trial, found: Trial) -> str:
    """
    Return what would notice a mutant that nothing noticed.

    A promise of the script where one is broken by the mutant and kept without it; a curve where a
    function trains; else what to write a test of.
    """
    for promise in promises_of(whole.steps):
        if _breaks(project, promise, found) and not _breaks(project, promise, whole):
            told = ", ".join(f"{name}={value!r}" for name, value in promise.items())
            return f'tg.Script("{project.module or project.script}", {_module(project)}{told})'
    if whole.losses == found.losses and mutant.operator.key.startswith("states.checkpoint"):
        return "tg.Checkpoint(train): train(directory, resume=False) saves there, and goes on"
    if whole.numbers == found.numbers:
        return "a test of what the script prints or writes: the training itself is the same"
    column = _column(whole, found)
    steps, function = len(whole.steps), _function(project, mutant)
    loop = f'tg.Loop({function or "train"}, steps={steps}, curve=("{column}",))'
    return loop if function else f"{loop}, with a function `train` that needs no arguments"


def _module(project: Project) -> str:
    """Return the argument that says of a script that it is a module, if it is."""
    return "module=True, " if project.module else ""


def _breaks(project: Project, promise: dict[str, Any], trial: Trial) -> bool:
    """Say whether a run breaks a promise: what it would be found broken by is new with it."""
    if not all(promise.values()):
        return False
    return bool(broken_with(project.script, promise, trial.trace) - trial.broken)


def _column(whole: Trial, found: Trial) -> str:
    """Return the first column whose curve differs visibly, or else the one that differs most."""
    apart = {name: _distance(name, whole, found) for name in COLUMNS if name != "memory"}
    visible = [name for name, distance in apart.items() if distance > _VISIBLE]
    return (visible or [max(apart, key=lambda name: apart[name])])[0]


def _distance(name: str, whole: Trial, found: Trial) -> float:
    """Return by which share of its value a column differs at most."""
    value, far = COLUMNS[name].value, 0.0
    for a, b in zip(whole.steps, found.steps, strict=False):
        x, y = value(a), value(b)
        if isfinite(x) and isfinite(y) and x != y:
            far = max(far, abs(x - y) / max(abs(x), abs(y)))
    return far


def _function(project: Project, mutant: Mutant) -> str:
    """Return the function that trains, if there is one that can be called without arguments."""
    script = (project.root / project.script).read_bytes()
    for node in [*ast.parse(script).body, *ast.parse(mutant.original).body]:
        if isinstance(node, ast.FunctionDef):
            given = node.args
            required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            bare = required == 0 and None not in given.kw_defaults
            calls = {n.func.attr for n in ast.walk(node) if _is_method(n)}  # type: ignore[attr-defined]
            if bare and {"backward", "step"} <= calls:
                return node.name
    return ""


def _is_method(node: ast.AST) -> bool:
    """Say whether a node is the call of a method."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
