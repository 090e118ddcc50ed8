"""How many cores this process may use."""

from __future__ import annotations

import os


def count_cores() -> int:
    """Return the cores that the scheduler gives us, where it says so, or else all there are."""
    mine = getattr(os, "sched_getaffinity", None)
    return len(mine(0)) if mine is not None else os.cpu_count() or 1
