"""`Scratch`: a temporary folder that does not outlive its owner for long.

It is removed where its context ends. A process that gets `kill -9` cannot do that, so the owner
holds a lock in the folder while it lives, and whoever makes the next one removes those that nobody
holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from drumline.core.errors import DrumlineError

_PREFIX = "drumline-"
_LOCK = ".drumline-scratch"  # only folders that have it are ours to remove
_MAX_ROOT = 50  # a socket's path has at most 103 characters, and the rest needs up to 49


class Scratch:
    """A folder of this process's own, with what killed owners left behind swept away first."""

    def __init__(self) -> None:
        self._lock = -1
        try:
            root = _root()
            _sweep(root)
            while self._lock < 0:  # until no sweep comes between a folder and its lock
                self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
                self._lock = _hold(self.path / _LOCK, os.O_CREAT)
        except OSError as error:
            raise DrumlineError(
                f"cannot make a temporary folder ({error}); set TMPDIR to one that can be written"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep() -> list[Path]:
    """Remove the folders whose owners are gone; returns them."""
    return _sweep(_root())


def is_held(path: Path) -> bool:
    """Whether the owner of a folder lives."""
    try:
        lock = _hold(path / _LOCK, 0)
    except OSError:  # there is no such folder any more
        return False
    if lock >= 0:
        os.close(lock)
    return lock < 0


def _root() -> Path:
    """Return where temporary files go, or /tmp where sockets in that folder had too long a path."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= _MAX_ROOT else Path("/tmp")


def _sweep(folder: Path) -> list[Path]:
    """Remove the scratch folders whose owners are gone."""
    removed = []
    for path in folder.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # somebody else's, or already gone
            lock = _hold(path / _LOCK, 0)
            if lock >= 0:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
                removed.append(path)
    return removed


def _hold(file: Path, flags: int) -> int:
    """Lock a file and return its descriptor, or -1 where another process has it or removed it."""
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.getuid() and file.exists():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return -1
