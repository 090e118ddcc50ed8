"""Calls of MPI: waiting without spinning and not forever, messages, and collectives in order.

MPI's own blocking waits spin. `RequestWaiter` tests a request with exponential backoff until the
timeout; then it names the rank that did not come. For a collective it finds that out through the
store: each rank that gives up says so there, under the collective's number, and one that has not
said so a moment later is the one all wait for.

Sends and receives (`Message`) are made from whatever thread the caller has, so MPI is asked for
MPI_THREAD_MULTIPLE. Collectives of one communicator must start in the same order on every rank,
though, and a blocking one cannot be given up. So each group has a thread for them, and another that
looks after it, so that whoever waits for the answer gets one in any case (`Collectives`):

    caller    all_reduce ──► queue ……………………………………………………………………………………………… wait
    thread                   (1) Ibarrier: all are here? tested with pauses, so a slow rank costs
                                 no CPU, and one that never comes is named
                             (2) the blocking collective, which spins, but only while data moves:
                                 two to three times as fast as its nonblocking form (Open MPI 5)
    watchdog                 a rank that stops within (2) leaves the thread in MPI for good: the
                             answer is then the watchdog's, after timeout_s
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from drumline.comm.lost_peers import LostPeerError
from drumline.comm.mpi.library import load_mpi
from drumline.comm.stream import Collective, CommStream, PendingWork
from drumline.core.formatting import name_ranks

_SPIN_S = 2e-4
_PAUSES_S = (5e-5, 1e-3)  # shortest, longest
_ASK_S = 1.0


class RequestWaiter:
    """How long the ranks of a group wait for each other, and how they find out who is missing."""

    def __init__(
        self, store: Store, rank: int, names: Sequence[int], timeout_s: Callable[[], float]
    ) -> None:
        """Know the ranks; `timeout_s` is asked for the limit of what has none of its own."""
        self._store, self._rank, self._names = store, rank, names
        self._timeout_s = timeout_s

    def wait(
        self,
        request: Any,
        what: str,
        missing: Callable[[], Sequence[int]],
        timeout_s: float | None = None,
    ) -> Any:
        """Wait until MPI's request is done, and return its status; else raise `lost(…)`.

        `missing` is asked then which ranks of the group did not come.
        """
        timeout_s = self._timeout_s() if timeout_s is None else timeout_s
        status = load_mpi().Status()
        began = time.monotonic()
        pause_s = _PAUSES_S[0]
        while not request.Test(status):
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise self.lost(what, timeout_s, missing())
            if waited_s < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSES_S[1])
        return status

    def lost(self, what: str, timeout_s: float, missing: Sequence[int]) -> LostPeerError:
        """Return the error that names who did not come, of the ranks in the group."""
        names = [self._names[rank] for rank in missing]
        return LostPeerError(
            f"timed out: {name_ranks(names)} did not come to {what} "
            f"within the timeout of {timeout_s:g} s",
            backend="mpi",
            ranks=names,
        )

    def others(self) -> list[int]:
        """Return all ranks of the group but this one."""
        return [rank for rank in range(len(self._names)) if rank != self._rank]

    def missing(self, number: int) -> list[int]:
        """Return who has not come to a collective: the other ranks are asked if they wait, too."""
        others = self.others()
        try:
            self._store.set(f"waits/{number}/{self._rank}", "1")
            time.sleep(_ASK_S)  # they began to wait at about the same time
            silent = [rank for rank in others if not self._answers(f"waits/{number}/{rank}")]
        except RuntimeError:  # the store is served by rank 0
            silent = [0]
        return silent or others

    def _answers(self, key: str) -> bool:
        try:
            self._store.wait([key], timedelta(milliseconds=50))
        except RuntimeError:
            return False
        return True


# tensors of messages that were given up: MPI may still read or write them, so they stay
_ABANDONED: list[list[Tensor]] = []


class Message(dist.Work):
    """A send or receive under way; the tensor is kept until it is done."""

    def __init__(
        self, request: Any, waiter: RequestWaiter, what: str, peer: int | None, parts: list[Tensor]
    ) -> None:
        """Follow a request; `parts` has what MPI reads or writes, and where to copy it then."""
        super().__init__()
        self._request, self._waiter, self._what = request, waiter, what
        self._peer, self._parts = peer, parts
        self._status: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the tensor may be used again."""
        if self._status is None:
            peer = self._peer
            missing = self._waiter.others if peer is None else lambda: [peer]
            limit_s = timeout.total_seconds() if timeout else None
            try:
                self._finish(self._waiter.wait(self._request, self._what, missing, limit_s))
            except LostPeerError:
                _ABANDONED.append(self._parts)
                raise
        return True

    def is_completed(self) -> bool:
        """Whether it is done; never blocks."""
        status = load_mpi().Status()
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


_POLL_S = 0.5
_GRACE_S = 2.0  # after the thread's own limit: it names the missing rank better


class Collectives:
    """Make the collectives of one communicator, one after the other."""

    def __init__(self, comm: Any, waiter: RequestWaiter) -> None:
        self._comm = comm
        self._waiter = waiter
        self._stream = CommStream()
        self._made = 0
        self._current: tuple[str, float, float] | None = None
        """the collective on the thread, its timeout, and since when it runs"""
        self._lost: LostPeerError | None = None
        """once a rank was missing, the others are out of step for good"""
        self._unanswered: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watchdog: threading.Thread | None = None

    def submit(
        self, what: str, collective: Collective, tensors: list[Tensor], timeout_s: float
    ) -> PendingWork:
        """Queue a collective; what is called when another has ended makes its own at once."""
        answer: Future[None] = Future()
        with self._lock:
            if self._watchdog is None:  # again after `close`
                self._closed.clear()
                self._watchdog = threading.Thread(
                    target=self._watch, name="drumline-mpi", daemon=True
                )
                self._watchdog.start()
            self._unanswered.add(answer)
            if not self._stream.is_current:
                self._stream.submit(lambda: self._make(what, collective, timeout_s, answer))
        if self._stream.is_current:
            self._make(what, collective, timeout_s, answer)
        elif self._lost is not None:
            self._answer(answer, self._lost)
        return PendingWork(answer, tensors)

    def close(self) -> None:
        """Let queued collectives end, and the threads with them, unless one is stuck in MPI."""
        if self._watchdog is not None:
            self._stream.close(stuck=lambda: self._lost is not None)
            self._closed.set()
            self._watchdog.join()
            self._watchdog = None

    def _make(
        self, what: str, collective: Collective, timeout_s: float, answer: Future[None]
    ) -> None:
        error: Exception | None = self._lost
        if error is None:
            self._made += 1
            self._current = what, timeout_s, time.monotonic()
            missing = partial(self._waiter.missing, self._made)
            try:
                self._waiter.wait(self._comm.Ibarrier(), what, missing, timeout_s)  # (1)
                collective()  # (2)
            except LostPeerError as lost:
                error = self._lost = lost
            except Exception as failed:
                error = failed
            self._current = None
        self._answer(answer, error)

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S):
            current = self._current
            if current is None or time.monotonic() - current[2] < current[1] + _GRACE_S:
                continue
            with self._lock:
                self._lost = self._waiter.lost(*current[:2], self._waiter.missing(self._made))
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
