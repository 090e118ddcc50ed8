"""What the spec names as `package.module:factory`: found, its options checked, and called.

A model, a data set, a loss, a metric, an optimizer, a logger of the user's own: all are named the
same way. The module is looked for in the current directory first, as `python -m` does, then among
the installed packages. Everything that can be wrong with the name ends in one sentence that says
so, and the way out.

Options are checked against the signature of the factory before it is called: `model: {name: cnn,
droput: 0}` must not train with dropout, nor end in a TypeError that speaks of `__init__()`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from drumline.core.errors import DrumlineError, SpecError
from drumline.core.formatting import nearest

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_SHORT = (int, float, str)  # of what is given, this can be shown in a message


@dataclass(frozen=True, kw_only=True)
class FactoryKind:
    """Factories of one kind, `FactoryKind(what="model", returns="an nn.Module", key="model")`."""

    what: str
    """what they make, in the words of messages: model, data set, loss, …"""
    returns: str
    """what one of them returns, with its article: an nn.Module, a torch.utils.data.Dataset, …"""
    key: str
    """the key of the spec whose `name` names one, and whose other keys are its options"""
    builtin: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """those that have a name of one word"""
    several: bool = False
    """whether the key has a list of them"""
    given: tuple[str, ...] = ()
    """arguments that the run gives to those that take them; the spec need not"""

    def build(self, name: str, options: Mapping[str, object], /, **given: object) -> Any:
        """Find a factory, check the options and call it; what it made is for the caller to check.

        Raises:
            SpecError: the name or an option is wrong, or the factory failed.
        """
        factory = self.find(name)
        self.check_options(name, factory, options)
        return self.call(name, factory, options, **given)

    def check(self, name: str) -> None:
        """Refuse a module or a name in it that is not there, without importing anything.

        For before ranks are started. What only running the module could tell is left to `find`.

        Raises:
            SpecError: as `find` says it.
        """
        if name in self.builtin:
            return
        module, part = self._split(name)
        missing, found = locate_module(module)
        if missing is not None:
            raise self.error(name, _explain_missing(module, missing))
        try:
            names = None if found is None else _defined_names(found)
        except SyntaxError as error:
            raise self._import_error(name, module, error) from None
        if names is not None and part.partition(".")[0] not in names:
            raise self._missing_part(name, module, part.partition(".")[0], names)

    def find(self, name: str) -> Callable[..., Any]:
        """Return the built-in of that name, or import `package.module` and return its `factory`.

        The factory may be dotted: `Class.method`.

        Raises:
            SpecError: there is no such factory, or its module cannot be imported.
        """
        if name in self.builtin:
            return self.builtin[name]
        if ":" not in name and self.builtin:
            known = f"{', '.join(self.builtin)}{suggest(name, self.builtin)}"
            raise self.error(name, f"is none of {known}, nor package.module:factory of your own")
        found: Any = self._import(name)
        for part in name.partition(":")[2].split("."):
            if not hasattr(found, part):
                where = getattr(found, "__name__", type(found).__name__)
                raise self._missing_part(name, where, part, dir(found))
            found = getattr(found, part)
        if not callable(found):
            kind = type(found).__name__
            raise self.error(name, f"is of type {kind}, which cannot be called; name a function")
        factory: Callable[..., Any] = found
        return factory

    def check_options(
        self,
        name: str,
        factory: Callable[..., Any],
        options: Mapping[str, object],
        given: tuple[str, ...] = (),
    ) -> None:
        """Refuse options that the factory does not take, and one that needs more than it gets.

        It gets the arguments that are `given`, beside those that all of the kind are.

        Raises:
            SpecError: says which option, and what the factory takes.
        """
        parameters = parameters_of(factory)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        takes = [option for option, p in parameters.items() if p.kind in _BY_KEYWORD]
        given = (*self.given, *given)
        valid = [option for option in takes if option not in given]
        for option in options:
            if option not in takes and not takes_any:
                raise SpecError(
                    f"{self.what} {name} has no option {option!r}{suggest(option, valid)}; it "
                    f"takes {', '.join(valid) or 'none'}",
                    key=f"{self.key}.{option}",
                )
        for option, p in parameters.items():
            required = p.default is p.empty and p.kind in (*_BY_KEYWORD, p.POSITIONAL_ONLY)
            if required and option not in options and option not in given:
                way = f"set {self.key}.{option}=…"
                if self.several:
                    way = f'write {self.key}=[{{name: "{name}", {option}: …}}]'
                raise SpecError(
                    f"{self.what} {name} needs a value for {option!r}; {way}, or give it a default "
                    f"in the factory",
                    key=f"{self.key}.{option}",
                )

    def call(
        self,
        name: str,
        factory: Callable[..., Any],
        options: Mapping[str, object],
        /,
        **given: object,
    ) -> Any:
        """Call a factory with its options, and with those given arguments that it takes.

        Raises:
            SpecError: the factory failed; an error of ours passes through.
        """
        takes = parameters_of(factory)
        arguments = {key: value for key, value in given.items() if key in takes} | dict(options)
        try:
            return factory(**arguments)
        except DrumlineError:
            raise  # its message is for people already
        except Exception as error:
            short = {k: v for k, v in arguments.items() if k in options or isinstance(v, _SHORT)}
            shown = ", ".join(f"{key}={value!r}" for key, value in short.items())
            raise self.error(
                name,
                f"could not be built: {type(error).__name__}: {error} "
                f"(called with {shown or 'nothing'}; mend the factory or these options)",
            ) from error

    def wrong_result(self, name: str, made: object) -> SpecError:
        """Return the error for a factory that made something else than it should."""
        problem = f"must return {self.returns}, but returned {type(made).__name__}"
        return self.error(name, f"{problem}; end the factory with `return {self.key}`")

    def error(self, name: str, problem: str) -> SpecError:
        """Return the error that says what is wrong with a name."""
        return SpecError(f"{self.what} {name!r} {problem}", key=f"{self.key}.name")

    def _split(self, name: str) -> tuple[str, str]:
        module, _, attribute = name.partition(":")
        if not module or not attribute or module.startswith("."):
            example = f"e.g. mine:{self.key}"
            raise self.error(name, f"is not of the form package.module:factory, {example}")
        if module == "__main__":
            raise self.error(
                name,
                f"is in a notebook or script, which ranks do not see; write it to a file, mine.py, "
                f"and name it mine:{attribute}",
            )
        return module, attribute

    def _missing_part(self, name: str, where: str, part: str, names: Iterable[str]) -> SpecError:
        public = [word for word in names if not word.startswith("_")]
        return self.error(
            name,
            f"cannot be found: {where} has no {part!r}{suggest(part, public)}; "
            f"name a function that returns {self.returns}",
        )

    def _import_error(self, name: str, module: str, error: BaseException) -> SpecError:
        return self.error(
            name,
            f"cannot be imported: {module} raised {type(error).__name__}: {error}; "
            f"try python -c 'import {module}'",
        )

    def _import(self, name: str) -> ModuleType:
        module, _ = self._split(name)
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)
        importlib.invalidate_caches()  # a file that was written a moment ago counts
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise self.error(name, _explain_missing(module, error.name or "")) from error
        except (Exception, SystemExit) as error:
            raise self._import_error(name, module, error) from error


def locate_module(module: str) -> tuple[str | None, ModuleSpec | None]:
    """Find a module in the current directory or among the installed packages; import nothing.

    Returns the part of its name that is not there, or else where it is (None: only importing it
    would tell).
    """
    importlib.invalidate_caches()
    parts = module.split(".")
    found = PathFinder.find_spec(parts[0], [os.getcwd()]) or find_spec(parts[0])
    for depth in range(1, len(parts)):
        if found is None:
            return ".".join(parts[:depth]), None
        if found.submodule_search_locations is None:
            return None, None
        inner = ".".join(parts[: depth + 1])
        found = PathFinder.find_spec(inner, list(found.submodule_search_locations))
    return (None, found) if found is not None else (module, None)


def _defined_names(module: ModuleSpec) -> set[str] | None:
    """Return the names that a module's source defines; None where that is more than meets the eye.

    Raises:
        SyntaxError: the source is no Python.
    """
    if module.origin is None or not module.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(module.origin).read_bytes())
    except (OSError, ValueError):
        return None
    names = {
        path.stem
        for where in module.submodule_search_locations or ()
        for path in Path(where).glob("*")
    }
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.Name(id="globals" | "exec" | "setattr"):
                return None
    return None if names & {"*", "__getattr__"} else names


def parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the factory's parameters; `**options` where Python cannot say (some C functions)."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def suggest(name: str, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'near'?)`, or nothing if no valid name is near."""
    hint = nearest(name, valid)
    return f" ({hint})" if hint else ""


def _explain_missing(module: str, missing: str) -> str:
    """Say what is wrong where importing a module ended in the lack of another, or of itself."""
    if not f"{module}.".startswith(f"{missing}."):
        return f"needs {missing!r}, which is not installed; install it first"
    package, _, last = missing.rpartition(".")
    folder = Path.cwd().joinpath(*package.split("."))
    files = folder.iterdir() if folder.is_dir() else ()
    modules = [path.stem for path in files if path.suffix == ".py" or path.is_dir()]
    return (
        f"cannot be imported: no module {missing!r} in {Path.cwd()} nor among the "
        f"installed packages{suggest(last, modules)}; start from the folder that holds "
        f"{module.split('.')[0]}, or install it"
    )
