"""What TARGET names: `module:factory`, a guard file's subject, or a script."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from trainguard.command.options import name_only
from trainguard.core.errors import DeclarationError, SubjectError, did_you_mean
from trainguard.core.settings import Settings
from trainguard.subjects.loop import Run, Script
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model
from trainguard.subjects.subject import Subject, parameters, required_names

_PATIENCE = 600.0  # seconds for each prediction of what is declared on the command line
_HOW = "Give module:factory, guard_file.py::subject, or a script."


def find_subject(target: str, options: Mapping[str, Any], settings: Settings) -> Subject:
    """
    Return the subject that TARGET names.

    options: what declares a model where TARGET is no subject by itself: `inputs`, `loss`, `at`,
    and the `args` of a script. Raises DeclarationError for what cannot be found, SubjectError where
    the team's code failed on the way.
    """
    _enter(Path.cwd())
    file, both, name = target.partition("::")
    path = Path(file)
    if both:
        return _find_declared(path, name, options)
    if path.suffix == ".py" or _is_file(path):
        guard = any(fnmatchcase(path.name, glob) for glob in settings.files)
        return _find_declared(path, "", options) if guard else _script(path, options)
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise DeclarationError(f"TARGET {target!r} names nothing. {_HOW}")
    return _make_subject(target, _attribute(module, attribute), options)


def _find_declared(path: Path, name: str, options: Mapping[str, Any]) -> Subject:
    """Return a subject of a guard file, the only one where none is named."""
    if not _is_file(path):
        raise DeclarationError(f"There is no file {str(path)!r} in {Path.cwd()}. {_HOW}")
    module = load_file(path)
    known = {key: value for key, value in vars(module).items() if isinstance(value, Subject)}
    own = {key: value for key, value in known.items() if value.file == str(path.resolve())}
    choice = own or known
    if not name and len(choice) == 1:
        name = next(iter(choice))
    if not name:
        listed = ", ".join(f"{path}::{key}" for key in choice)
        told = f"declares {len(choice)} subjects: {listed}." if choice else "declares no subject."
        raise DeclarationError(f"{path} {told}{' Name one of them.' * bool(choice)}")
    if name not in known and not hasattr(module, name):
        raise DeclarationError(f"{path} declares no subject {name!r}.{did_you_mean(name, known)}")
    return _make_subject(f"{path}::{name}", getattr(module, name), options, name)


def _make_subject(told: str, found: Any, options: Mapping[str, Any], name: str = "") -> Subject:
    """Return the subject that an object is, makes, or can be declared as."""
    if "__trainguard__" in getattr(found, "__dict__", {}):
        found = _call_guard(told, found)
    if not isinstance(found, Subject):
        return _model(told, found, options)
    if (options["inputs"] or options["loss"]) and not isinstance(found, Run):
        raise DeclarationError(
            f"{told} is declared already, so that --input and --loss have no say. Leave them out."
        )
    if not isinstance(found, Model | Loss | Run):
        raise DeclarationError(
            f"{told} is a tg.{type(found).__name__}, which makes no training step."
            " Give a tg.Model, a tg.Loss or a tg.Loop."
        )
    if name:
        object.__setattr__(found, "name", name)  # as it is called where it is collected
    return found


def _call_guard(told: str, function: Callable[..., Any]) -> Any:
    """Return what a function under `@tg.guard` returns; one that wants fixtures is refused."""
    needs = sorted(required_names(function))
    if needs:
        raise DeclarationError(
            f"{told} wants {needs[0]!r}, a fixture, which only pytest has."
            " Declare the subject at module level."
        )
    try:
        return function()
    except DeclarationError:
        raise
    except Exception as error:
        raise SubjectError(f"{told} raised {type(error).__name__}") from error


def _model(told: str, found: Any, options: Mapping[str, Any]) -> Model:
    """Declare a module, or a factory of one, with what the command line says of it."""
    if not callable(found):
        raise DeclarationError(f"{told} is {found!r:.60}, which is no model and makes none. {_HOW}")
    if not options["inputs"]:
        raise DeclarationError(
            f"{told} is a model whose inputs are not declared."
            " Declare each: --input 'x=real(\"B 16\", -1, 1)', as in a guard file."
        )
    dimensions = {name for domain in options["inputs"].values() for name in domain.names}
    accepted = parameters(found)
    arguments = {
        name: value
        for name, value in options["at"].items()
        if name not in dimensions and (accepted is None or name in accepted)
    }
    is_module = not inspect.isclass(found) and hasattr(found, "named_parameters")
    home, _, loss = (options["loss"] or "").rpartition(":")
    if options["loss"] and not home:
        raise DeclarationError(f"--loss {loss!r} names nothing. Write --loss module:function.")
    return Model(
        found,
        inputs=options["inputs"],
        arguments={} if is_module else arguments,
        loss=_attribute(home, loss) if loss else None,
        timeout=_PATIENCE,
    )


def _is_file(path: Path) -> bool:
    """Say whether there is a file; what is too long to be a path is none."""
    return os.path.isfile(path)  # noqa: PTH113 Path raises for that


def _script(path: Path, options: Mapping[str, Any]) -> Script:
    """Return the script that is to be run."""
    if not _is_file(path):
        raise DeclarationError(f"There is no script {str(path)!r} in {Path.cwd()}. {_HOW}")
    return name_only(Script(path, args=tuple(options["args"]), name=path.name))


def _attribute(module: str, attribute: str) -> Any:
    """Import a module and return what it calls by a name; both may be dotted."""
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _make_error(module, error) from error
        raise DeclarationError(f"There is no module {module!r}, from {Path.cwd()}.") from None
    except Exception as error:
        raise _make_error(module, error) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = did_you_mean(part, (name for name in dir(value) if not name.startswith("_")))
            near = near if "Did" in near else ""
            raise DeclarationError(f"{module} has no {attribute!r}.{near}")
        value = getattr(value, part)
    return value


def load_file(path: Path) -> ModuleType:
    """Execute a guard file as pytest would, under a name of its own."""
    _enter(path.resolve().parent)
    name = f"trainguard_memory_{path.stem}"
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path} is not Python. {_HOW}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from None
    except Exception as error:
        raise _make_error(str(path), error) from error
    return module


def _make_error(told: str, error: Exception) -> SubjectError:
    """Return what is told of a module that raised while it was imported."""
    return SubjectError(f"{told} raised {type(error).__name__} while it was imported")


def _enter(folder: Path) -> None:
    """Let modules of a folder be imported."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
