"""`Busy`: the sign that a node is in use, R/limits/busy: touched while a job runs or files travel.

A node that nobody has touched for a while ends itself (`cluster/files/limits.sh`). Nothing but the
standard library, Python 3.8.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

EVERY_S = 10.0


class Busy:
    """Keeps the node from ending itself; call `tick` as often as something moves."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(root, "limits")
        self._next = float("-inf")

    def tick(self) -> None:
        """Touch the file, if that was not done just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        with suppress(OSError):  # a disk that is full must not end what goes on
            os.makedirs(self._folder, exist_ok=True)
            path = os.path.join(self._folder, "busy")
            with open(path, "a"):
                os.utime(path)
