"""`package.module:factory`: a model of the user's own, found by name.

The module is looked for in the current directory first, as `python -m` does, then among the
installed packages. Everything that can be wrong with the name ends in one sentence that says so.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from drumline.core.errors import SpecError
from drumline.models.options import suggest


def find_factory(name: str) -> Callable[..., Any]:
    """Import `package.module` and return its `factory` (which may be dotted: `Class.method`).

    Raises:
        SpecError: there is no such module or name, importing it failed, or it cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise _error(name, "is not of the form package.module:factory, e.g. nets:build")
    found: Any = _import(name, module_name)
    for part in attribute.split("."):
        found = _member(name, found, part)
    if isinstance(found, nn.Module):
        raise _error(name, "is a model, not a function that makes one; wrap it in a function")
    if not callable(found):
        raise _error(
            name, f"is of type {type(found).__name__}, which cannot be called; name a function"
        )
    factory: Callable[..., Any] = found
    return factory


def _import(name: str, module_name: str) -> ModuleType:
    _see_current_directory()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if f"{module_name}.".startswith(f"{missing}."):
            raise _not_found(name, module_name, missing) from error
        raise _error(
            name, f"needs {missing!r}, which is not installed; install it first"
        ) from error
    except (Exception, SystemExit) as error:
        raise _error(
            name,
            f"cannot be imported: {module_name} raised {type(error).__name__}: {error}; "
            f"try python -c 'import {module_name}'",
        ) from error


def _see_current_directory() -> None:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # a file that was written a moment ago counts


def _not_found(name: str, module_name: str, missing: str) -> SpecError:
    package, _, last = missing.rpartition(".")
    folder = Path.cwd().joinpath(*package.split(".")) if package else Path.cwd()
    return _error(
        name,
        f"cannot be imported: no module {missing!r} in {Path.cwd()} nor among the installed "
        f"packages{suggest(last, _modules_in(folder))}; "
        f"start from the folder that holds {module_name.split('.')[0]}, or install it",
    )


def _modules_in(folder: Path) -> list[str]:
    """List what could be imported from a folder: its .py files and sub-folders."""
    if not folder.is_dir():
        return []
    return [p.stem for p in folder.iterdir() if p.suffix == ".py" or p.is_dir()]


def _member(name: str, owner: Any, part: str) -> Any:
    try:
        return getattr(owner, part)
    except AttributeError as error:
        where = getattr(owner, "__name__", type(owner).__name__)
        public = [word for word in dir(owner) if not word.startswith("_")]
        raise _error(
            name,
            f"cannot be found: {where} has no {part!r}{suggest(part, public)}; "
            f"name a function that returns an nn.Module",
        ) from error


def _error(name: str, words: str) -> SpecError:
    return SpecError(f"model {name!r} {words}", key="model.name")
