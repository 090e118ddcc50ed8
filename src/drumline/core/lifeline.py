"""A process that must not outlive the one that started it.

On Linux the kernel sends the signal, even where the parent got `kill -9` and this process is
stopped or deep in a C library. Elsewhere a thread looks for the parent twice a second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """End this process (SIGKILL) as soon as its parent is gone.

    Args:
        parent: who should be the parent, where that is known (it may be gone already).
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        when_parent_ends(parent, _die)
    if os.getppid() != parent:  # it went before we asked
        _die()


def when_parent_ends(parent: int, then: Callable[[], None]) -> None:
    """Call a function, in a thread of its own, as soon as the parent is gone."""
    threading.Thread(target=_watch, args=(parent, then), daemon=True).start()


def _watch(parent: int, then: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    then()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Become another command that ends with a process: `… lifeline PARENT COMMAND …`."""
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
