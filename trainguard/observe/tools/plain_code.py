"""What a guard file can say of a program: values as code, and what something is imported by."""

import ast
import dataclasses
import sys
from argparse import Namespace
from inspect import unwrap
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LONGEST = 200  # characters of a word, and entries of a list
_DEEPEST = 6
Imports = list[tuple[str, str]]


def write_plain(value: Any, imports: Imports, depth: int = 0) -> str | None:
    """Return code that makes a value, None where there is none; adds the imports that it needs."""
    if value is None or type(value) in (bool, int, str):
        return repr(value) if len(repr(value)) < _LONGEST else None
    if isinstance(value, float):
        return repr(float(value)) if isfinite(value) else None
    if depth > _DEEPEST:
        return None
    if type(value) in (list, tuple):
        return _write_entries(value, imports, depth)
    if type(value) is dict:
        keys = _write_entries(list(value), imports, depth)
        values = [write_plain(entry, imports, depth + 1) for entry in value.values()]
        if keys is None or None in values:
            return None
        return "{" + ", ".join(f"{key!r}: {v}" for key, v in zip(value, values, strict=True)) + "}"
    if type(value) in (Namespace, SimpleNamespace):
        return _write_call(type(value), vars(value), imports, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        given = {name: getattr(value, name) for name in fields}
        return _write_call(type(value), given, imports, depth)
    return None


def _write_entries(values: Any, imports: Imports, depth: int) -> str | None:
    """Return the code of a list or a tuple."""
    if len(values) > _LONGEST:
        return None
    codes = [write_plain(entry, imports, depth + 1) for entry in values]
    if None in codes:
        return None
    words = ", ".join(code for code in codes if code is not None)
    if isinstance(values, list):
        return f"[{words}]"
    return f"({words},)" if len(values) == 1 else f"({words})"


def _write_call(made: type, given: dict[str, Any], imports: Imports, depth: int) -> str | None:
    """Return the call of a class by keywords."""
    codes = {name: write_plain(value, imports, depth + 1) for name, value in given.items()}
    at_the_top = "." not in made.__qualname__
    if None in codes.values() or not at_the_top or not all(map(str.isidentifier, codes)):
        return None
    imports.append((made.__module__, made.__qualname__))
    return f"{made.__name__}({', '.join(f'{name}={code}' for name, code in codes.items())})"


def write_arguments(given: dict[str, Any], imports: Imports) -> tuple[tuple[str, str], ...] | None:
    """Return arguments as code; None where one of them has none."""
    codes = {name: write_plain(value, imports) for name, value in given.items()}
    written = tuple((name, code) for name, code in codes.items() if code is not None)
    return written if len(written) == len(codes) else None


def default_of(function: Any, name: str) -> Any:
    """Return what a parameter is if it is not given; the function itself where it must be."""
    code, plain = function.__code__, getattr(function, "__func__", function)
    names = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(names), reversed(plain.__defaults__ or ()), strict=False))
    return (defaults | (plain.__kwdefaults__ or {})).get(name, function)


def find_no_import(module: str, name: str) -> str:
    """Say why something cannot be imported by a guard file; empty where it can."""
    home = sys.modules.get(module)
    if "." in name or getattr(home, name, None) is None:
        return "it stands inside of a function or class"
    if module == "__main__" and not _is_importable(getattr(home, "__file__", None) or ""):
        return 'its script trains when it is imported: put that under `if __name__ == "__main__"`'
    code = getattr(unwrap(getattr(home, name)), "__code__", None)
    return "" if code is None or code.co_name == name else "another function has its name"


def _is_importable(file: str) -> bool:
    """Say whether a script looks at its own name before it does anything."""
    body = ast.parse(Path(file).read_bytes()).body
    return any(isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in body)


def import_name(module: str) -> str:
    """Return what a module is imported by, also where it was the script, or run by `python -m`."""
    main = sys.modules.get(module) if module == "__main__" else None
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else module
