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
        threading.Thread(target=_watch, args=(parent, os.getpid()), daemon=True).start()
    if os.getppid() != parent:  # it went before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def end_group_with(parent: int) -> None:
    """End this process's whole group as soon as its parent is gone; for one that leads a group.

    What it starts need not know of it. A thread looks for the parent: the kernel's signal would end
    this process alone.
    """
    threading.Thread(target=_watch, args=(parent, 0), daemon=True).start()


def _watch(parent: int, victim: int) -> None:
    """Wait for the parent's end, then kill a process, or (0) the group that this one is in."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(victim, signal.SIGKILL)


def main() -> None:
    """Become another command that ends with a process: `… lifeline PARENT COMMAND …`."""
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
