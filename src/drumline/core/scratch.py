"""`Scratch`: a temporary folder that does not outlive its owner for long.

It is removed where its context ends, or at the latest where the process does. A process that gets
`kill -9` cannot do that, so the owner holds a lock in the folder while it lives, and whoever makes
the next one removes those that nobody holds any more. The lock is the last to go, so that a removal
that was cut short is finished then, too.

In /tmp other users make folders and links, too, under whatever name. So a folder is opened without
following a link, must be this user's, and all in it is removed by way of that descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.lock import is_locked
from drumline.core.processes import deferred_signals

_PREFIX = "drumline-"
_LOCK = ".drumline-scratch"  # only folders that have it are ours to remove
_MAX_ROOT = 50  # a socket's path has at most 103 characters, and the rest needs up to 49
_TRIES, _PAUSE_S = 20, 0.05  # at a folder into which a process that was just killed still writes


class Scratch(contextlib.AbstractContextManager["Scratch"]):
    """A folder of this process's own, with what killed owners left behind swept away first."""

    def __init__(self) -> None:
        try:
            sweep()
            with deferred_signals():
                self.path, lock = _make()
                self._remove = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())
        except OSError as error:
            raise DrumlineError(
                f"cannot make a temporary folder ({error}); set TMPDIR to one that can be written"
            ) from error

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        with deferred_signals():
            self._remove()


def sweep() -> list[Path]:
    """Remove the scratch folders whose owners are gone; returns them."""
    with deferred_signals():  # Python tries the folder by a file of its own
        root = _root()
    removed = []
    for path in root.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError), _opened(path) as folder:
            lock = _hold(folder, 0)
            if lock is not None:
                removed += _clear(path, folder)
                os.close(lock)
    return removed


def is_held(path: Path) -> bool:
    """Whether the owner of a scratch folder lives."""
    return is_locked(path / _LOCK)


def _root() -> Path:
    """Return where temporary files go, or /tmp where sockets in that folder had too long a path."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= _MAX_ROOT else Path("/tmp")


def _make() -> tuple[Path, int]:
    """Make a folder and hold its lock; return the lock's descriptor, too."""
    while True:  # until no sweep comes between a folder and its lock
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_root()))
        with _opened(path) as folder:
            lock = _hold(folder, os.O_CREAT)
        if lock is not None:
            return path, lock


def _remove_own(path: Path, lock: int, owner: int) -> None:
    """Remove a folder that this process holds; a fork of it leaves the folder alone."""
    with deferred_signals():
        for _ in range(_TRIES if os.getpid() == owner else 0):
            with contextlib.suppress(OSError), _opened(path) as folder:
                _clear(path, folder)
            if not path.exists():
                break
            time.sleep(_PAUSE_S)
        os.close(lock)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Give a folder's descriptor; an OSError where it is a link, somebody else's or gone."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        yield folder
    finally:
        os.close(folder)


def _clear(path: Path, folder: int) -> list[Path]:
    """Remove a folder as far as that goes; returns what is gone.

    The lock goes last: a folder without it would be nobody's, and stay for ever.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
            elif name != _LOCK:
                os.unlink(name, dir_fd=folder)
        if os.listdir(folder) == [_LOCK]:
            os.unlink(_LOCK, dir_fd=folder)
            path.rmdir()
            return [path]
    return []


def _hold(folder: int, flags: int) -> int | None:
    """Lock a folder, and return the descriptor; None where another process holds or removes it."""
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.getuid() and _LOCK in os.listdir(folder):
            return lock
    os.close(lock)
    return None
