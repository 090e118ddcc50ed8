"""A communication stream: one thread that runs collectives in order while the caller computes.

Collectives must start in the same order on every rank. A single thread that takes them from a
queue keeps the order in which they were handed in, and leaves the main thread to the backward pass:

    main thread      backward … bucket 0 full ─┐ … bucket 1 full ─┐ …… finish(): wait for both
    stream thread                              └► all-reduce 0 ───┴► all-reduce 1 ─►

The operations release Python's lock while they wait for the network and while they add.

With GPU tensors the thread also has a CUDA stream of its own: it waits until the tensors handed in
are computed, and for the end of the operation itself, so that begin and end are real times.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast

_POLL_S = 0.5
Job = tuple[Callable[[], None], Future[None], torch.cuda.Event | None]


class CommStream:
    """Run jobs one after the other on a thread of its own, started with the first job.

    A job that is handed in on that thread, by what is called when another has ended (PyTorch's
    `then`), runs at once: it is waited for right there, so it could not come up behind the others.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._on_gpu = device is not None and device.type == "cuda"
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def started(self) -> bool:
        """Whether a job was ever handed in."""
        return self._thread is not None

    @property
    def idle(self) -> bool:
        """Whether all jobs have ended, and what was to be called then."""
        return self._under_way == 0

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the stream's thread."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Queue a job; the handle's `result()` waits for it and raises what it raised."""
        done: Future[None] = Future()
        if self.is_current:
            _run(job, done, None)
            return done
        ready = None
        if self._on_gpu:
            ready = torch.cuda.Event()
            ready.record()
        with self._lock:
            self._under_way += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="drumline-comm", daemon=True
                )
                self._thread.start()
        self._jobs.put((job, done, ready))
        return done

    def close(self, stuck: Callable[[], bool] = lambda: False) -> None:
        """Let queued jobs finish and end the thread, unless `stuck` says that it never will."""
        if self._thread is not None and not self.is_current:
            self._jobs.put(None)
            while self._thread.is_alive() and not stuck():
                self._thread.join(_POLL_S)
            self._thread = None

    def _work(self) -> None:
        _work_alone()
        own_stream = torch.cuda.Stream(self._device) if self._on_gpu else None
        while (item := self._jobs.get()) is not None:
            job, done, ready = item
            with torch.no_grad(), torch.cuda.stream(own_stream):  # nothing without a GPU
                _run(job, done, ready)
            with self._lock:
                self._under_way -= 1


def _run(
    job: Callable[[], None], done: Future[None], ready: torch.cuda.Event | None = None
) -> None:
    try:
        if ready is not None:
            ready.synchronize()
        job()
    except BaseException as error:  # handed to whoever waits
        done.set_exception(error)
    else:
        done.set_result(None)


_LIBRARY = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)$", re.MULTILINE)


def _work_alone() -> None:
    """Let torch's operations in the calling thread, and in no other, use one thread.

    OpenMP makes a team of N threads for every thread that computes. A communication thread that
    adds up gradients would bring N more to cores that backward has taken already.
    `torch.set_num_threads` is no help: it changes the default of all threads, and MKL's.
    """
    torch.get_num_threads()  # torch settles the number of a new thread at its first use
    with contextlib.suppress(OSError):
        for path in set(_LIBRARY.findall(Path("/proc/self/maps").read_text())):
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(path).omp_set_num_threads(1)


Collective = Callable[[], None]


def profiled(name: str, tensors: Sequence[Tensor], collective: Collective) -> Collective:
    """Begin an event of PyTorch's profiler; return what makes the collective and ends the event."""
    event = _RecordFunctionFast(name, list(tensors), {})
    event.__enter__()

    def run() -> None:
        try:
            collective()
        finally:
            event.__exit__(None, None, None)

    return run


class PendingWork(dist.Work):
    """A collective that may still run: PyTorch's callers `wait()`, DDP wants a future."""

    _kept: ClassVar[deque[PendingWork]] = deque(maxlen=16)

    def __init__(self, done: Future[None], tensors: list[Tensor]) -> None:
        super().__init__()
        self._done = done
        self._tensors = tensors
        self._awaited = False

    def __del__(self) -> None:
        """Stay for a while where nobody has waited, since C++ may still want to.

        DDP's `join` hands a work to C++ and drops it. C++ finds `wait` only while the Python object
        is there, and without it waits for ever, also for a collective that has ended.
        """
        if not self._awaited:
            self._kept.append(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective has ended, or for so long; raises what it raised."""
        self._awaited = True
        if not timeout:
            self._done.result()
            return True
        limit_s = timeout.total_seconds()
        try:
            self._done.result(limit_s)
        except TimeoutError:
            if self._done.done():
                raise
            raise RuntimeError(
                "timed out: the collective runs, and has not ended "
                f"within the timeout of {limit_s:g} s"
            ) from None
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
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the same as one of PyTorch's futures.

        Its error is raised inside `then`: only so do C++ parts like DDP see that there is one.
        """
        self._awaited = True
        ended: torch.futures.Future[None] = torch.futures.Future()
        answer = ended.then(lambda _: self.result())
        self._done.add_done_callback(lambda _: ended.set_result(None))
        return answer
