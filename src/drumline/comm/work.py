"""What a collective gives back, and on which thread it runs, for the backends written here.

PyTorch asks a backend for a `Work`: `wait()` for callers of `async_op=True`, `get_future()` for
DDP. Collectives of one group must run in the order of the calls, so there are two ways:

    a blocking call, nothing under way     runs at once on the caller's thread: no handing over
    anything else                          queues up on the group's communication thread
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from drumline.comm.stream import CommStream

Collective = Callable[[], None]


class EndedWork(dist.Work):
    """A collective that has ended before its caller got this."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """It has ended."""
        return True

    def is_success(self) -> bool:
        """It has ended well; else its caller had got the error."""
        return True

    def result(self) -> list[Tensor]:
        """Return the tensors that hold the result."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the same as one of PyTorch's futures."""
        answer: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        answer.set_result(self._tensors)
        return answer


class PendingWork(dist.Work):
    """A collective that may still run."""

    def __init__(self, done: Future[None], tensors: list[Tensor]) -> None:
        super().__init__()
        self._done = done
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective has ended; raises what it raised."""
        self._done.result()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.done()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done.done() and self._done.exception() is None

    def exception(self) -> BaseException | None:
        """What it raised."""
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[Tensor]:
        """Block for, and return, the tensors that hold the result."""
        self._done.result()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the same as one of PyTorch's futures.

        Its error is raised inside `then`: only so do C++ parts like DDP see that there is one.
        """
        ended: torch.futures.Future[None] = torch.futures.Future()
        answer = ended.then(lambda _: self.result())
        self._done.add_done_callback(lambda _: ended.set_result(None))
        return answer


class InOrder:
    """Run the collectives of one group one after the other."""

    def __init__(self) -> None:
        self._stream = CommStream()
        self._order = threading.Lock()
        self._running = threading.Lock()
        self._latest: Future[None] | None = None
        self._closed = False

    def run(self, collective: Collective, tensors: list[Tensor], *, blocking: bool) -> dist.Work:
        """Run a collective now (blocking, and nothing is queued), or queue it."""
        with self._order:  # threads of autograd call here, too
            idle = self._latest is None or self._latest.done()
            queued = None
            if not idle or not (blocking or self._closed):
                queued = self._latest = self._stream.submit(lambda: self._guarded(collective))
            else:
                self._running.acquire()
        if queued is None:
            try:
                collective()
            finally:
                self._running.release()
            return EndedWork(tensors)
        if blocking:
            queued.result()
        return PendingWork(queued, tensors)

    def close(self) -> None:
        """Let queued collectives end, and the thread with them; no other starts."""
        self._closed = True
        self._stream.close()

    def _guarded(self, collective: Collective) -> None:
        with self._running:
            collective()
