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
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_POLL_S = 0.5
Job = tuple[Callable[[], None], Future[None], torch.cuda.Event | None]


class CommStream:
    """Run jobs one after the other on a thread of its own, started with the first job."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._on_gpu = device is not None and device.type == "cuda"
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def started(self) -> bool:
        """Whether a job was ever handed in."""
        return self._thread is not None

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Queue a job; the handle's `result()` waits for it and raises what it raised."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="drumline-comm", daemon=True
                )
                self._thread.start()
        done: Future[None] = Future()
        ready = None
        if self._on_gpu:
            ready = torch.cuda.Event()
            ready.record()
        self._jobs.put((job, done, ready))
        return done

    def close(self, stuck: Callable[[], bool] = lambda: False) -> None:
        """Let queued jobs finish and end the thread, unless `stuck` says that it never will."""
        if self._thread is not None:
            self._jobs.put(None)
            while self._thread.is_alive() and not stuck():
                self._thread.join(_POLL_S)
            self._thread = None

    def _work(self) -> None:
        _work_alone()
        own_stream = torch.cuda.Stream(self._device) if self._on_gpu else None
        while (item := self._jobs.get()) is not None:
            job, done, ready = item
            try:
                with torch.no_grad(), torch.cuda.stream(own_stream):  # nothing without a GPU
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


class PendingWork(dist.Work):
    """A collective that may still run: PyTorch's callers `wait()`, DDP wants a future."""

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
