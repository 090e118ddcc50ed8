"""`Calls`: the one thread of a group that makes its MPI collectives, in the order of the calls.

MPI is asked for MPI_THREAD_MULTIPLE, because sends and receives are made from whatever thread the
caller has. Collectives of one communicator must start in the same order on every rank, though, and
a blocking one cannot be given up. So each group has a thread for them, and another that looks
after it, so that whoever waits for the answer (a caller, DDP by a future) gets one in any case:

    caller    all_reduce ──► queue ……………………………………………………………………………………………… wait
    thread                   (1) Ibarrier: all are here? tested with pauses, so a slow rank costs
                                 no CPU, and one that never comes is named
                             (2) the blocking collective, which spins, but only while data moves:
                                 two to three times as fast as its nonblocking form (Open MPI 5)
    watchdog                 a rank that stops within (2) leaves the thread in MPI for good: the
                             answer is then the watchdog's, after timeout_s
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from drumline.comm.lost_peers import LostPeerError
from drumline.comm.mpi.requests import RequestWaiter
from drumline.comm.stream import CommStream, PendingWork

_POLL_S = 0.5
_GRACE_S = 2.0  # after the thread's own limit: it names the missing rank better


class Calls:
    """Make the collectives of one communicator, one after the other."""

    def __init__(self, comm: Any, waiter: RequestWaiter) -> None:
        self._comm = comm
        self._waiter = waiter
        self._stream = CommStream()
        self._current: tuple[str, float] | None = None
        """the collective on the thread, and since when"""
        self._lost: LostPeerError | None = None
        """once a rank was missing, the others are out of step for good"""
        self._unanswered: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="drumline-mpi", daemon=True)

    def submit(
        self, what: str, collective: Callable[[], None], tensors: list[Tensor]
    ) -> PendingWork:
        """Queue a collective."""
        answer: Future[None] = Future()
        with self._lock:
            if not self._stream.started:
                self._watchdog.start()
            self._unanswered.add(answer)
            self._stream.submit(lambda: self._make(what, collective, answer))
        if self._lost is not None:
            self._answer(answer, self._lost)
        return PendingWork(answer, tensors)

    def close(self) -> None:
        """Let queued collectives end, and the threads with them, unless one is stuck in MPI."""
        if self._stream.started:
            self._stream.close(stuck=lambda: self._lost is not None)
            self._closed.set()
            self._watchdog.join()

    def _make(self, what: str, collective: Callable[[], None], answer: Future[None]) -> None:
        if self._lost is not None:
            self._answer(answer, self._lost)
            return
        self._current = what, time.monotonic()
        try:
            self._waiter.wait(self._comm.Ibarrier(), what)  # (1)
            collective()  # (2)
        except LostPeerError as error:
            self._lost = error
            self._answer(answer, error)
        except Exception as error:
            self._answer(answer, error)
        else:
            self._answer(answer)
        self._current = None

    def _watch(self) -> None:
        limit_s = self._waiter.timeout_s + _GRACE_S
        while not self._closed.wait(_POLL_S):
            current = self._current
            if current is None or time.monotonic() - current[1] < limit_s:
                continue
            with self._lock:
                self._lost = self._waiter.lost(current[0])
                left = list(self._unanswered)
            for answer in left:
                self._answer(answer, self._lost)
            return

    def _answer(self, answer: Future[None], error: Exception | None = None) -> None:
        with self._lock:
            if answer not in self._unanswered:  # the other thread was first
                return
            self._unanswered.remove(answer)
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
