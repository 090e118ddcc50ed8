"""`FileLock`: an advisory lock on a file (flock), exclusive or shared.

The lock belongs to the open descriptor, not to the process: whoever inherits or receives the
descriptor holds the lock, too, and the kernel releases it when the last one is closed, also after
`kill -9`. Standard library only, Python 3.8.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

_POLL_S = 0.05
_CREATE = os.O_RDWR | os.O_CREAT


class FileLock:
    """A lock on one file; as a context manager it waits for as long as it takes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flags: int = _CREATE,
        descriptor: int = -1,
    ) -> None:
        """Prepare to lock a file, or a folder (with `flags=os.O_RDONLY`).

        `descriptor` is that of a lock that another process acquired, and handed over.
        """
        self.path = path
        self.descriptor = descriptor
        self._flags = flags | os.O_CLOEXEC

    def acquire(self, wait_s: float | None = None, *, shared: bool = False) -> bool:
        """Lock it, if this object does not yet; returns False where somebody else holds it.

        Args:
            wait_s: how long to wait for them; 0: not at all, None: for as long as it takes.
            shared: several may hold a shared lock, as long as nobody holds it exclusively.
        """
        if self.descriptor >= 0:
            return True
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = None if wait_s is None else time.monotonic() + wait_s
        descriptor = os.open(self.path, self._flags, 0o600)
        try:
            while not _lock(descriptor, kind if deadline is None else kind | fcntl.LOCK_NB):
                if deadline is not None and time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor
        return True

    def release(self) -> None:
        """Close this process's descriptor; another process that has it keeps the lock."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def write_holder(self, text: str) -> None:
        """Write into the locked file who holds it; a full disk does not matter."""
        os.ftruncate(self.descriptor, 0)
        with suppress(OSError):
            os.pwrite(self.descriptor, text.encode(), 0)

    def read_holder(self) -> str:
        """Read who holds it, as they wrote it; "" where they did not."""
        with suppress(OSError), open(self.path, errors="replace") as file:
            return file.read()
        return ""

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a living process holds an exclusive lock on a file."""
    probe = FileLock(path, flags=os.O_RDONLY)
    try:
        free = probe.acquire(0, shared=True)
    except OSError:
        return False
    probe.release()
    return not free


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    return True
