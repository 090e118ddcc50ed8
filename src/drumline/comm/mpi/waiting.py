"""Waiting for MPI without burning a core, and not forever.

MPI's own blocking waits spin. Here a request is tested, at first without a pause, then with longer
and longer ones, until the time is over; then whoever did not come is named.

Who did not come is asked through the store: each rank that gives up says so there, and one that
has not said so a moment later is the one that all wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from drumline.comm.peer import LostPeerError
from drumline.core.formatting import name_ranks

_SPIN_S = 2e-4
_PAUSES_S = (5e-5, 1e-3)  # shortest, longest
_ASK_S = 1.0


class Patience:
    """How long the ranks of a group wait for each other, and how they find out who is missing."""

    def __init__(self, store: Store, rank: int, names: Sequence[int], timeout_s: float) -> None:
        self._store, self._rank, self._names = store, rank, names
        self.timeout_s = timeout_s

    def wait(self, request: Any, what: str, peers: Sequence[int] | None = None) -> Any:
        """Wait until a request is done, and return its status.

        Args:
            request: from a nonblocking call of MPI.
            what: the call, for the error.
            peers: the ranks in the group that it needs, where that is not all.

        Raises:
            LostPeerError: it is not done in time.
        """
        status = new_status()
        began = time.monotonic()
        pause_s = _PAUSES_S[0]
        while not request.Test(status):
            waited_s = time.monotonic() - began
            if waited_s > self.timeout_s:
                raise self.lost(what, peers)
            if waited_s < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSES_S[1])
        return status

    def lost(self, what: str, peers: Sequence[int] | None = None) -> LostPeerError:
        """Return the error that names who did not come."""
        late = self._missing() if peers is None else list(peers)
        names = [self._names[rank] for rank in late]
        return LostPeerError(
            f"timed out: {name_ranks(names)} did not come to {what} within {self.timeout_s:g} s",
            backend="mpi",
            ranks=names,
        )

    def _missing(self) -> list[int]:
        """Ask the other ranks whether they wait, too."""
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        try:
            self._store.set(f"waits/{self._rank}", "1")
            time.sleep(_ASK_S)  # they began to wait at about the same time
            silent = [rank for rank in others if not self._answers(rank)]
        except RuntimeError:  # the store is served by rank 0
            silent = [0]
        return silent or others

    def _answers(self, rank: int) -> bool:
        try:
            self._store.wait([f"waits/{rank}"], timedelta(milliseconds=50))
        except RuntimeError:
            return False
        return True


def new_status() -> Any:
    """Make room for what MPI tells of a message."""
    from drumline.comm.mpi.library import load_mpi

    return load_mpi().Status()
