"""Whether a file of its own can import what a program has, and by what name."""

import ast
import sys
from inspect import unwrap
from pathlib import Path


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
