"""Processes that a check leaves behind: found by their session or their parent, and ended.

The server adopts what its forks leave (a *subreaper*, on Linux): a process that made itself a
session of its own has the server as its parent as soon as the fork that started it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 0.5  # for processes that end by themselves
_LIMIT_S = 5.0
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of what the processes below this one leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_strays(session: int) -> int:
    """End what a fork that led this session has left, and return how many did not go by itself."""
    deadline = time.monotonic() + _GRACE_S
    while (found := set(_strays(session))) and time.monotonic() < deadline:
        time.sleep(0.02)
    count = len(found)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + _LIMIT_S
    while (found := set(_strays(session))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)
    _reap()
    return count


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _strays(session: int) -> Iterator[int]:
    """Find living processes of a session, or with this process as their parent."""
    own = os.getpid()
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                state, parent, its_session = fields[0], int(fields[1]), int(fields[3])
                if state not in "ZX" and (parent == own or its_session == session):
                    yield int(entry.name)
