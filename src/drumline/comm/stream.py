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

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from drumline.comm.openmp import work_alone

_LOOK_EVERY_S = 0.5
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
                self._thread.join(_LOOK_EVERY_S)
            self._thread = None

    def _work(self) -> None:
        work_alone()
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


class Pending:
    """An asynchronous call."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Block until it is done; raises what went wrong."""
        self._future.result()
