"""`CallFiles`: a function on its way to the ranks that call it, and what each of them gave back.

    launcher ──▶ call.pkl          the backend and what a module needs; the function, its arguments
             ◀── result-N.pkl      what rank N returned
             ◀── error-N.pkl       the exception that rank N raised

Functions of a notebook's cells, closures and lambdas have no module to be imported from, so they
travel by value, which cloudpickle does. To unpickle is to run what is written there: the folder and
the files in it are this user's alone, and a file that another user could have written is refused.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.core.errors import RunDirError, UsageError

_OWNER_ONLY = 0o600


@dataclass(frozen=True, kw_only=True)
class Call:
    """What every rank is to do."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class CallFiles:
    """The files of one call, in a folder that is made with them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder

    def write_call(self, call: Call, backend: str | None) -> None:
        """Leave the call for the ranks, which will find modules where this process does.

        Raises:
            UsageError: the function or an argument cannot be pickled.
        """
        name = getattr(call.function, "__name__", repr(call.function))
        content = _pickle((call.function, call.args, call.kwargs), f"cannot send {name} to ranks")
        # apart, and first: to unpickle the function may need modules that are found there
        self._write("call", pickle.dumps((backend, sys.path, _cell_sources())) + content)

    def mentions(self, word: str) -> bool:
        """Whether a word is in the call: in the function's code, or a cell of the notebook."""
        return word.encode() in self._path("call").read_bytes()

    def read_call(self) -> tuple[Call, str | None]:
        """Return the call, and the backend of its process group; takes over the caller's path."""
        with _open_own(self._path("call")) as file:
            backend, sys.path[:], sources = pickle.load(file)
            linecache.cache.update(sources)
            function, args, kwargs = pickle.load(file)
        return Call(function=function, args=args, kwargs=kwargs), backend

    def write_result(self, rank: int, value: object) -> None:
        """Leave what a rank returned.

        Raises:
            UsageError: it cannot be pickled.
        """
        what = f"rank {rank} returned {type(value).__name__}, which cannot be sent back"
        self._write(f"result-{rank}", _pickle(value, what))

    def read_result(self, rank: int) -> Any:
        """Return what a rank returned."""
        with _open_own(self._path(f"result-{rank}")) as file:
            return pickle.load(file)

    def missing_results(self, ranks: int) -> list[int]:
        """Return the ranks that have returned nothing yet."""
        return [rank for rank in range(ranks) if not self._path(f"result-{rank}").exists()]

    def write_error(self, rank: int, error: BaseException) -> None:
        """Leave the exception that a rank raised, where it can be pickled and written."""
        for form in (error, (type(error), error.args, vars(error)), (type(error), error.args, {})):
            with contextlib.suppress(Exception):
                content = _pickle(form, "")
                pickle.loads(content)  # an __init__ with other arguments fails only here
                self._write(f"error-{rank}", content)
                return

    def read_error(self, rank: int) -> BaseException | None:
        """Return the exception that a rank raised; None where it has left none."""
        try:
            with _open_own(self._path(f"error-{rank}")) as file:
                error = pickle.load(file)
            if not isinstance(error, BaseException):
                kind, args, fields = error
                error = kind.__new__(kind, *args)
                vars(error).update(fields)
        except Exception:  # there is none, or its type is not known here
            return None
        return error if isinstance(error, BaseException) else None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.pkl"

    def _write(self, name: str, content: bytes) -> None:
        draft = self._folder / f".{name}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "wb") as file:
            file.write(content)
        draft.rename(self._path(name))


def _cell_sources() -> dict[str, tuple[int, None, list[str], str]]:
    """Return the text of a notebook's cells, which is in no file, for a rank's tracebacks."""
    entries = [(name, linecache.getlines(name)) for name in list(linecache.cache)]
    # without a time, it is not looked for on the disk
    return {
        name: (sum(map(len, lines)), None, lines, name)
        for name, lines in entries
        if lines and not name.startswith("<") and not Path(name).exists()
    }


def _open_own(path: Path) -> Any:
    """Open a file that nobody but this user could have written."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: SIM115  the caller's
    found = os.fstat(file.fileno())
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        file.close()
        raise RunDirError(f"{path} could have been written by another user, so it is not read")
    return file


def _pickle(value: object, what: str) -> bytes:
    import cloudpickle  # only where functions are sent

    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise UsageError(
            f"{what}: {error}; use values that can be pickled, and make the others on the ranks"
        ) from error
    return content
