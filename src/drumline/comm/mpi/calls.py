"""`Calls`: the one thread of a group that makes its MPI collectives, in the order of the calls.

MPI is asked for MPI_THREAD_MULTIPLE, because sends and receives are made from whatever thread the
caller has. Collectives of one communicator must start in the same order on every rank, though, and
a blocking one cannot be given up. So each group has a thread for them, and the caller waits for
that thread with a limit:

    caller   all_reduce ──► queue …………………………… wait, timeout_s at most for each collective
    thread                  (1) Ibarrier: all are here? tested with pauses, so a slow rank costs
                                no CPU, and one that never comes is named
                            (2) the blocking collective, which spins, but only while data moves:
                                two to three times as fast as its nonblocking form (Open MPI 5)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from datetime import timedelta
from typing import Any

from torch import Tensor

from drumline.comm.mpi.waiting import Patience
from drumline.comm.peer import LostPeerError
from drumline.comm.stream import CommStream
from drumline.comm.work import PendingWork

_LOOK_EVERY_S = 0.5
_GRACE_S = 2.0  # after the thread's own limit: it names the missing rank better


class Calls:
    """Make the collectives of one communicator, one after the other."""

    def __init__(self, comm: Any, patience: Patience) -> None:
        self._comm = comm
        self._patience = patience
        self._stream = CommStream()
        self._began: float | None = None
        self._what = ""
        self._lost: LostPeerError | None = None
        """once a rank was missing, the others are out of step for good"""

    def submit(self, what: str, collective: Callable[[], None], tensors: list[Tensor]) -> MpiWork:
        """Queue a collective."""
        return MpiWork(self, self._stream.submit(lambda: self._make(what, collective)), tensors)

    def settle(self, done: Future[None]) -> None:
        """Wait for a collective; raises what it raised.

        Raises:
            LostPeerError: the thread is stuck in MPI, since another rank has stopped half-way.
        """
        while True:
            try:
                return done.result(_LOOK_EVERY_S)
            except StillRunning:
                if done.done():
                    continue
                began = self._began
                limit_s = self._patience.timeout_s + _GRACE_S
                if began is not None and time.monotonic() - began > limit_s:
                    raise self._patience.lost(self._what) from None

    def close(self) -> None:
        """Let queued collectives end, and the thread with them."""
        self._stream.close()

    def _make(self, what: str, collective: Callable[[], None]) -> None:
        if self._lost is not None:
            raise self._lost
        self._what, self._began = what, time.monotonic()
        try:
            self._patience.wait(self._comm.Ibarrier(), what)  # (1)
            collective()  # (2)
        except LostPeerError as error:
            self._lost = error
            raise
        finally:
            self._began = None


class MpiWork(PendingWork):
    """A collective on the group's thread."""

    def __init__(self, calls: Calls, done: Future[None], tensors: list[Tensor]) -> None:
        super().__init__(done, tensors)
        self._calls = calls

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective has ended, or another rank has kept it from that."""
        self._calls.settle(self._done)
        return True
