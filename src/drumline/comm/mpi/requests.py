"""MPI requests: waiting without spinning and not forever, and sends and receives as `dist.Work`.

MPI's own blocking waits spin. `RequestWaiter` tests a request with exponential backoff until the
timeout; then it names the rank that did not come. It finds that out through the store: each rank
that gives up says so there, and one that has not said so a moment later is the one all wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from drumline.comm.lost_peers import LostPeerError
from drumline.core.formatting import name_ranks

_SPIN_S = 2e-4
_PAUSES_S = (5e-5, 1e-3)  # shortest, longest
_ASK_S = 1.0


class RequestWaiter:
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
        status = _new_status()
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


def _new_status() -> Any:
    """Make room for what MPI tells of a message."""
    from drumline.comm.mpi.library import load_mpi

    return load_mpi().Status()


# tensors of messages that were given up: MPI may still read or write them, so they stay
_ABANDONED: list[list[Tensor]] = []


class Message(dist.Work):
    """A send or receive under way; the tensor is kept until it is done."""

    def __init__(
        self,
        request: Any,
        waiter: RequestWaiter,
        what: str,
        peer: int | None,
        parts: list[Tensor],
    ) -> None:
        """Follow a request.

        Args:
            request: from MPI.
            waiter: how long to wait.
            what: the call, for errors.
            peer: the other rank in the group; None: any.
            parts: the tensor that MPI reads or writes; if there is a second, where to copy it then.
        """
        super().__init__()
        self._request, self._waiter, self._what = request, waiter, what
        self._peer, self._parts = peer, parts
        self._status: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the tensor may be used again."""
        if self._status is None:
            peers = None if self._peer is None else [self._peer]
            try:
                self._finish(self._waiter.wait(self._request, self._what, peers))
            except LostPeerError:
                _ABANDONED.append(self._parts)
                raise
        return True

    def is_completed(self) -> bool:
        """Whether it is done; never blocks."""
        status = _new_status()
        if self._status is None and self._request.Test(status):
            self._finish(status)
        return self._status is not None

    def result(self) -> list[Tensor]:
        """Block for, and return, the tensor."""
        self.wait()
        return self._parts[-1:]

    def source_rank(self) -> int:
        """Who sent it (a rank in the group)."""
        self.wait()
        return int(self._status.Get_source()) if self._peer is None else self._peer

    _source_rank = source_rank

    def _finish(self, status: Any) -> None:
        self._status = status
        if len(self._parts) == 2:
            self._parts[1].detach().copy_(self._parts[0])
